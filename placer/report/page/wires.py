"""Draws the arrows of a picture: the lanes in channels, the corners and the labels."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from placer.report.numbers import format_ms, format_size
from placer.report.page.box_text import BOX_WIDTH, SMALL
from placer.report.page.facts import Arrow
from placer.report.page.lanes import assign_lanes
from placer.report.page.routes import Route, Routes, Wire
from placer.report.page.shapes import Drawn, Point, Rect
from placer.report.page.text_fit import text_width

LANE: Final = 11.0
"""The distance of two lines in a gutter."""
LABEL_HEIGHT: Final = 13.0
_LABEL_ROW: Final = 15.0
_LABEL_PAD: Final = 3.0
_ABOVE_LINE: Final = 5.0
"""The distance of a label to the middle of its line. Lines are at most twice as thick."""
_PLAIN_LANE: Final = 11.0
_HEAD_ROOM: Final = 15.0
"""The space for the heads of arrows above a row."""
_TOP_PAD: Final = 5.0
_EMPTY_CHANNEL: Final = 20.0
_OUT_PORT: Final = 0.64
_IN_PORT: Final = 0.36
"""The place of the line from and to a box, relative to its width."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The positions that do not depend on the heights of the channels.

    Attributes:
        lefts: the left side of the boxes of each column.
        gutters: the left side of the lanes of each gutter.
        columns, rows, heights: of each box.
        row_heights: the height of the highest box of each row.
        top: the bottom of the header.
        width: the width of the picture.
    """

    lefts: Sequence[float]
    gutters: Sequence[float]
    columns: Sequence[int]
    rows: Sequence[int]
    heights: Sequence[float]
    row_heights: Sequence[float]
    top: float
    width: float

    def out_port(self, box: int) -> float:
        return self.lefts[self.columns[box]] + _OUT_PORT * BOX_WIDTH

    def in_port(self, box: int) -> float:
        return self.lefts[self.columns[box]] + _IN_PORT * BOX_WIDTH

    def lane(self, route: Route) -> float:
        """Return the x of a route in its gutter."""
        assert route.gutter is not None
        return self.gutters[route.gutter] + LANE * (route.lane + 1)


@dataclass(slots=True)
class _Label:
    arrow: int
    text: str
    x: float
    width: float
    row: int = 0


@dataclass(slots=True)
class _Wire:
    """A horizontal line in a channel: its ends, its labels and its y."""

    port: float
    ends: list[float] = field(default_factory=list)
    labels: list[_Label] = field(default_factory=list)
    y: float = 0.0

    @property
    def interval(self) -> tuple[float, float]:
        starts = [self.port, *self.ends, *(label.x for label in self.labels)]
        stops = [self.port, *self.ends, *(each.x + each.width for each in self.labels)]
        return min(starts), max(stops)

    @property
    def height(self) -> float:
        rows = max((label.row + 1 for label in self.labels), default=0)
        return max(_PLAIN_LANE, rows * _LABEL_ROW + _ABOVE_LINE)


def draw_arrows(
    arrows: Sequence[Arrow], routes: Routes, grid: Grid
) -> tuple[tuple[Drawn, ...], list[float], float]:
    """Return the drawn arrows, the top of each row, and the bottom of the last channel."""
    channels: list[dict[Wire, _Wire]] = [{} for _ in range(len(grid.row_heights) + 1)]
    for arrow, route in zip(arrows, routes.routes, strict=True):
        _add_ends(channels, arrow, route, grid)
    verticals = _verticals(arrows, routes, grid)
    for index, arrow in enumerate(arrows):
        _add_label(channels, verticals, index, arrow, routes, grid)
    row_tops: list[float] = []
    at = grid.top
    for channel, wires in enumerate(channels):
        is_last = channel == len(grid.row_heights)
        at = _stack(wires, at, has_heads=not is_last)
        if not is_last:
            row_tops.append(at)
            at += grid.row_heights[channel]
    labels = {
        label.arrow: (wire, label)
        for wires in channels
        for wire in wires.values()
        for label in wire.labels
    }
    drawn = []
    for index, (arrow, route) in enumerate(zip(arrows, routes.routes, strict=True)):
        wire, label = labels[index]
        y = wire.y - _ABOVE_LINE - label.row * _LABEL_ROW - LABEL_HEIGHT
        drawn.append(
            Drawn(
                _points(channels, arrow, route, grid, row_tops),
                Rect(label.x, y, label.width, LABEL_HEIGHT),
                label.text,
                thickness(arrow.nbytes),
            )
        )
    return tuple(drawn), row_tops, at


def thickness(nbytes: int) -> float:
    """Return the width of the line for a message. It grows with the logarithm of bytes."""
    return min(1.3 + 0.42 * math.log10(1 + nbytes / 100), 5.5)


def label_text(arrow: Arrow) -> str:
    """Return the label of an arrow: its size and its measured time. An upper bound begins
    with "≤"."""
    size = "in memory"
    if arrow.nbytes:
        size = f"{'≤ ' if arrow.estimated else ''}{format_size(arrow.nbytes)}"
    return size if arrow.seconds is None else f"{size} · {format_ms(arrow.seconds)}"


def _out_end(arrow: Arrow, route: Route, grid: Grid) -> float:
    """Return the x where an arrow leaves the line from its source."""
    return grid.in_port(arrow.target) if route.gutter is None else grid.lane(route)


def _in_end(arrow: Arrow, route: Route, grid: Grid) -> float:
    """Return the x where an arrow reaches the line to its target."""
    return grid.out_port(arrow.source) if route.gutter is None else grid.lane(route)


def _add_ends(
    channels: list[dict[Wire, _Wire]], arrow: Arrow, route: Route, grid: Grid
) -> None:
    if route.out_channel is not None:
        wires = channels[route.out_channel]
        port = grid.out_port(arrow.source)
        wire = wires.setdefault(("out", arrow.source), _Wire(port))
        wire.ends.append(_out_end(arrow, route, grid))
    if route.in_channel is not None:
        wires = channels[route.in_channel]
        port = grid.in_port(arrow.target)
        wire = wires.setdefault(("in", arrow.target), _Wire(port))
        wire.ends.append(_in_end(arrow, route, grid))


def _verticals(
    arrows: Sequence[Arrow], routes: Routes, grid: Grid
) -> list[list[float]]:
    """Return the x of all vertical lines in each channel, ascending."""
    found: list[set[float]] = [set() for _ in range(len(grid.row_heights) + 1)]
    for arrow, route in zip(arrows, routes.routes, strict=True):
        first, last = grid.rows[arrow.source] + 1, grid.rows[arrow.target]
        if route.gutter is not None:
            for channel in range(min(first, last), max(first, last) + 1):
                found[channel].add(grid.lane(route))
            found[first].add(grid.out_port(arrow.source))
            found[last].add(grid.in_port(arrow.target))
            continue
        turn = route.in_channel if route.out_channel is None else route.out_channel
        assert turn is not None
        for channel in range(first, turn + 1):
            found[channel].add(grid.out_port(arrow.source))
        for channel in range(turn, last + 1):
            found[channel].add(grid.in_port(arrow.target))
    return [sorted(each) for each in found]


def _add_label(
    channels: list[dict[Wire, _Wire]],
    verticals: Sequence[Sequence[float]],
    index: int,
    arrow: Arrow,
    routes: Routes,
    grid: Grid,
) -> None:
    """Put the label of an arrow on the line that it shares with fewer others."""
    route = routes.routes[index]
    fan_out, fan_in = routes.fan_out[arrow.source], routes.fan_in[arrow.target]
    is_out = route.in_channel is None or (
        route.out_channel is not None and fan_in > fan_out
    )
    channel = route.out_channel if is_out else route.in_channel
    assert channel is not None
    key: Wire = ("out", arrow.source) if is_out else ("in", arrow.target)
    wire = channels[channel][key]
    end = _out_end(arrow, route, grid) if is_out else _in_end(arrow, route, grid)
    text = label_text(arrow)
    width = math.ceil(text_width(text, SMALL)) + 2 * _LABEL_PAD
    if len(wire.ends) == 1:
        x = (wire.port + end - width) / 2
    else:
        x = end - width - 4 if wire.port < end else end + 4
    x = _clear_x(x, width, sorted((wire.port, end)), verticals[channel])
    x = max(0.0, min(x, grid.width - width))
    wire.labels.append(_Label(index, text, x, width))


def _clear_x(
    wanted: float, width: float, ends: Sequence[float], verticals: Sequence[float]
) -> float:
    """Return the x of a label between the ends of its line that is nearest to `wanted` and
    where no vertical line crosses the label; `wanted` if no place is clear."""
    left, right = ends[0] + 3, ends[1] - 3 - width
    shifts = range(0, int(max(0.0, right - left)) + 1, 8)
    for x in (wanted, *(side for d in shifts for side in (wanted - d, wanted + d))):
        at = bisect_left(verticals, x - 2)
        is_clear = at == len(verticals) or verticals[at] > x + width + 2
        if left <= x <= right and is_clear:
            return x
    return wanted


def _stack(wires: dict[Wire, _Wire], top: float, *, has_heads: bool) -> float:
    """Set the y of the wires of a channel. Return the bottom of the channel.

    Lines from boxes are above lines to boxes, so that a line to a gutter and back into the
    same channel does not cross itself.
    """
    if not wires:
        return top + _EMPTY_CHANNEL
    at = top + _TOP_PAD
    for direction in ("out", "in"):
        own = [wire for (way, _), wire in wires.items() if way == direction]
        for wire in own:
            _stack_labels(wire)
        lanes = assign_lanes([wire.interval for wire in own], gap=8)
        heights = [0.0] * (max(lanes, default=-1) + 1)
        for lane, wire in zip(lanes, own, strict=True):
            heights[lane] = max(heights[lane], wire.height)
        ends = [at + sum(heights[: lane + 1]) for lane in range(len(heights))]
        for lane, wire in zip(lanes, own, strict=True):
            wire.y = ends[lane]
        at = ends[-1] if ends else at
    return at + (_HEAD_ROOM if has_heads else _TOP_PAD)


def _stack_labels(wire: _Wire) -> None:
    intervals = [(label.x, label.x + label.width) for label in wire.labels]
    rows = assign_lanes(intervals, gap=4)
    for label, row in zip(wire.labels, rows, strict=True):
        label.row = row


def _points(
    channels: list[dict[Wire, _Wire]],
    arrow: Arrow,
    route: Route,
    grid: Grid,
    row_tops: Sequence[float],
) -> tuple[Point, ...]:
    source, target = arrow.source, arrow.target
    start = grid.out_port(source)
    end = grid.in_port(target)
    bottom = row_tops[grid.rows[source]] + grid.heights[source]
    points: list[Point] = [(start, bottom)]
    x = start
    if route.out_channel is not None:
        y = channels[route.out_channel]["out", source].y
        points.append((x, y))
        x = _out_end(arrow, route, grid)
        points.append((x, y))
    if route.in_channel is not None:
        y = channels[route.in_channel]["in", target].y
        points.append((x, y))
        x = end
        points.append((x, y))
    points.append((x, row_tops[grid.rows[target]]))
    return tuple(points)
