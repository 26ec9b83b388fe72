"""Assigns rows to boxes, and lets columns that do not fit share one.

An arrow leads from a row to a lower one. Boxes of a column have different rows, in the
order of the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placer.report.page.boxes import Box, Boxes, Link, merge, sort_topologically


def set_rows(boxes: Boxes, first: Sequence[int]) -> None:
    """Set the row of each box: the length of the longest path to it, where boxes of a
    column follow each other.

    Args:
        boxes: the boxes.
        first: the position of the first op of each box.
    """
    last: dict[int, int] = {}
    for number in sort_topologically(boxes.before, first):
        box = boxes.boxes[number]
        above = (boxes.boxes[source].row for source in boxes.before[number])
        box.row = 1 + max(max(above, default=-1), last.get(box.column, -1))
        last[box.column] = box.row


@dataclass(frozen=True, slots=True)
class SharedBoxes:
    """The boxes after columns share a column.

    Attributes:
        boxes: the boxes.
        of: the index of the shared box of each box.
    """

    boxes: Boxes
    of: list[int]


def share_columns(
    boxes: Boxes, columns: Sequence[int], shared: Sequence[bool], first: Sequence[int]
) -> SharedBoxes:
    """Move boxes to the columns that are drawn, and merge those in shared columns.

    Args:
        boxes: the boxes.
        columns: the new column of each column.
        shared: whether a column shares its new column.
        first: the position of the first op of each box.
    """
    keys = [
        (columns[box.column], box.purpose) if shared[box.column] else None
        for box in boxes.boxes
    ]
    merged = merge(boxes.before, keys, first)
    kept = [number for number, other in enumerate(merged) if number == other]
    index = {number: i for i, number in enumerate(kept)}
    of = [index[other] for other in merged]
    result = [
        Box(columns[boxes.boxes[number].column], boxes.boxes[number].purpose)
        for number in kept
    ]
    sources: list[dict[int, bool]] = [{} for _ in kept]
    for number, box in enumerate(boxes.boxes):
        result[of[number]].ops += box.ops
        for source, is_message in boxes.before[number].items():
            if of[source] != of[number]:
                known = sources[of[number]]
                known[of[source]] = is_message or known.get(of[source], False)
    links = [
        Link(of[link.source], of[link.target], link.value)
        for link in boxes.links
        if of[link.source] != of[link.target]
    ]
    return SharedBoxes(
        Boxes(
            result,
            sources,
            _renumber(boxes.senders, of),
            _renumber(boxes.receivers, of),
            links,
        ),
        of,
    )


def sort_by_row(shared: SharedBoxes) -> SharedBoxes:
    """Return the boxes from the top row to the last one."""
    boxes, old = shared.boxes, shared.boxes.boxes
    order = sorted(range(len(old)), key=lambda n: (old[n].row, old[n].column))
    new = [0] * len(old)
    for i, number in enumerate(order):
        new[number] = i
    return SharedBoxes(
        Boxes(
            [old[number] for number in order],
            [
                {new[source]: sent for source, sent in boxes.before[number].items()}
                for number in order
            ],
            _renumber(boxes.senders, new),
            _renumber(boxes.receivers, new),
            [Link(new[a.source], new[a.target], a.value) for a in boxes.links],
        ),
        [new[number] for number in shared.of],
    )


def _renumber(
    boxes: dict[int, dict[int, int]], new: Sequence[int]
) -> dict[int, dict[int, int]]:
    return {
        edge: {group: new[box] for group, box in of_edge.items()}
        for edge, of_edge in boxes.items()
    }
