"""Chooses the way of each arrow through the channels and gutters of a picture.

A line leaves its box at the bottom, into the channel below the row of the box, and reaches
the other box from the channel above its row. If the two channels differ, the line goes from
one to the other through a column without boxes in between, or else along a gutter.

All arrows from a box share a line in the first channel, and all arrows to a box share a line
in the last channel, as the wires of a circuit do.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from placer.report.page.facts import Arrow
from placer.report.page.lanes import assign_lanes

Wire = tuple[Literal["out", "in"], int]
"""A line that arrows share: from a box ("out") or to a box ("in")."""


@dataclass(frozen=True, slots=True)
class Route:
    """The way of an arrow.

    Attributes:
        out_channel: the channel with the line that the arrows from the source share, or
            None.
        in_channel: the channel with the line that the arrows to the target share, or None.
        gutter: the gutter, or None without one. Gutter i is on the left of column i.
        lane: the lane in the gutter.
    """

    out_channel: int | None
    in_channel: int | None
    gutter: int | None = None
    lane: int = 0


@dataclass(frozen=True, slots=True)
class Routes:
    """The ways of all arrows.

    Attributes:
        routes: in the order of the arrows.
        gutter_lanes: the number of lanes in each gutter.
        fan_out, fan_in: the number of arrows from and to each box.
    """

    routes: tuple[Route, ...]
    gutter_lanes: tuple[int, ...]
    fan_out: Counter[int]
    fan_in: Counter[int]


def choose_routes(
    arrows: Sequence[Arrow],
    rows: Sequence[int],
    columns: Sequence[int],
    column_count: int,
) -> Routes:
    """Choose the route of each arrow.

    Args:
        rows, columns: the row and the column of each box.
    """
    fan_out = Counter(arrow.source for arrow in arrows)
    fan_in = Counter(arrow.target for arrow in arrows)
    used: list[list[int]] = [[] for _ in range(column_count)]
    for row, column in sorted(zip(rows, columns, strict=True)):
        used[column].append(row)
    load: Counter[int] = Counter()
    routes: list[Route] = []
    in_gutter: dict[tuple[int, Wire], list[int]] = {}
    for index, arrow in enumerate(arrows):
        source, target = arrow.source, arrow.target
        start, end = columns[source], columns[target]
        out, into = rows[source] + 1, rows[target]
        joins = fan_in[target] > fan_out[source]
        channel = None
        if start != end and into >= out:
            # Each end prefers the channel where its line is shared.
            crosses_end = not _has_row(used[end], out, into)
            crosses_start = not _has_row(used[start], out, into)
            prefers_end = crosses_end and not (joins and crosses_start)
            channel = out if prefers_end else into if crosses_start else None
        if channel is not None:
            routes.append(Route(None, channel) if joins else Route(channel, None))
        else:
            gutter = min(_gutters(start, end), key=lambda g: (load[g], abs(g - start)))
            wire: Wire = ("in", target) if joins else ("out", source)
            if (gutter, wire) not in in_gutter:
                load[gutter] += 1
            in_gutter.setdefault((gutter, wire), []).append(index)
            routes.append(Route(out, into, gutter))
    counts = _assign_gutter_lanes(routes, in_gutter, column_count)
    return Routes(tuple(routes), counts, fan_out, fan_in)


def _has_row(used: Sequence[int], first: int, end: int) -> bool:
    """Return True if a column has a box in a row from `first` to before `end`."""
    at = bisect_left(used, first)
    return at < len(used) and used[at] < end


def _gutters(start: int, end: int) -> Iterator[int]:
    """Yield the gutters between two columns; for one column, the gutter on its right."""
    if start == end:
        yield start + 1
    else:
        yield from range(min(start, end) + 1, max(start, end) + 1)


def _assign_gutter_lanes(
    routes: list[Route], in_gutter: dict[tuple[int, Wire], list[int]], columns: int
) -> tuple[int, ...]:
    """Set the lane of each route in its gutter. Return the number of lanes by gutter."""
    counts = [0] * (columns + 1)
    for gutter in range(columns + 1):
        wires = [members for (at, _), members in in_gutter.items() if at == gutter]
        lanes = assign_lanes([_span(routes, members) for members in wires])
        counts[gutter] = max(lanes, default=-1) + 1
        for lane, members in zip(lanes, wires, strict=True):
            for index in members:
                old = routes[index]
                routes[index] = Route(old.out_channel, old.in_channel, gutter, lane)
    return tuple(counts)


def _span(routes: Sequence[Route], members: Sequence[int]) -> tuple[float, float]:
    channels = [
        channel
        for index in members
        for channel in (routes[index].out_channel, routes[index].in_channel)
        if channel is not None
    ]
    return min(channels), max(channels)
