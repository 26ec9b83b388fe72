"""Merges the slices of a timeline that are too narrow to be seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from placer.report.step.facts import SliceFacts

_WIDEST: Final = 4
"""The largest width of merged slices, relative to the shortest slice that is drawn."""


@dataclass(slots=True)
class Drawn:
    """One slice, or several narrow neighbors.

    Attributes:
        category: the category that takes most of the time.
        name: the name of a single slice; empty for several.
        count: the number of slices.
        busy: the time of the slices, without the gaps between them.
    """

    start: float
    end: float
    category: str
    name: str
    depth: int
    count: int = 1
    busy: float = 0.0


def merge_slices(
    rows: Sequence[Sequence[SliceFacts]], shortest: float, most: int
) -> list[list[Drawn]]:
    """Return the slices to draw in each row, in order.

    Neighbors of equal depth that are shorter than `shortest` are merged if the gap between
    them is also shorter. If more than `most` slices remain, longer ones are merged.

    Args:
        rows: the slices of each row.
        shortest: a time in seconds.
        most: the largest number of slices in all rows.
    """
    while True:
        merged = [list(_merge(row, shortest)) for row in rows]
        if sum(map(len, merged)) <= most or not shortest:
            return merged
        shortest *= 2


def _merge(row: Iterable[SliceFacts], shortest: float) -> Iterator[Drawn]:
    by_depth: dict[int, list[SliceFacts]] = {}
    for each in row:
        by_depth.setdefault(each.depth, []).append(each)
    for slices in by_depth.values():
        slices.sort(key=lambda each: (each.start, each.end))
        yield from _merge_neighbors(slices, shortest)


def _merge_neighbors(slices: Iterable[SliceFacts], shortest: float) -> Iterator[Drawn]:
    group: list[SliceFacts] = []
    for each in slices:
        is_short = each.end - each.start < shortest
        is_far = group and (
            each.start - group[-1].end >= shortest
            or each.end - group[0].start >= _WIDEST * shortest
        )
        if group and (not is_short or is_far):
            yield _joined(group)
            group = []
        if is_short:
            group.append(each)
        else:
            yield _joined([each])
    if group:
        yield _joined(group)


def _joined(group: Sequence[SliceFacts]) -> Drawn:
    first = group[0]
    end = max(each.end for each in group)
    busy = sum(each.end - each.start for each in group)
    if len(group) == 1:
        category, name = first.category, first.name
    else:
        times: Counter[str] = Counter()
        for each in group:
            times[each.category] += each.end - each.start  # type: ignore[assignment]
        category, name = max(times, key=times.__getitem__), ""
    return Drawn(first.start, end, category, name, first.depth, len(group), busy)
