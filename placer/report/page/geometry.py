"""Positions of boxes, columns and groups in the picture of a placement.

Columns stand side by side with a gutter on each side. Rows are bands over all columns, with
a channel above each row and below the last one. Lines of arrows run only in channels and
gutters, and through columns where they have no box, so no line crosses a box.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from placer.report.numbers import plural
from placer.report.page.box_text import BOX_WIDTH, BoxText, box_text
from placer.report.page.facts import Placement
from placer.report.page.routes import Routes, choose_routes
from placer.report.page.shapes import Drawn, Rect
from placer.report.page.wires import LANE, Grid, draw_arrows

MARGIN: Final = 14.0
"""The distance of a box to the border of the panel of its group."""
_MIN_GUTTER: Final = 2 * MARGIN + 12.0
"""The smallest distance of two columns."""
_HEADER: Final = 52.0
_DEVICE_HEADER: Final = 20.0
"""The additional height of the header if a group has several columns."""
_MOST_LINES: Final = 6
_FEW_LINES: Final = 2
_MANY_ROWS: Final = 30
"""Boxes have fewer lines in a picture with more rows."""
_FOOTER: Final = 26.0


@dataclass(frozen=True, slots=True)
class Geometry:
    """The positions of everything in a picture.

    Attributes:
        boxes, texts: in the order of `Placement.boxes`.
        arrows: in the order of `Placement.arrows`.
        columns: the area of each column, with its header.
        groups: the panel of each group.
    """

    width: float
    height: float
    boxes: tuple[Rect, ...]
    texts: tuple[BoxText, ...]
    arrows: tuple[Drawn, ...]
    columns: tuple[Rect, ...]
    groups: tuple[Rect, ...]


def place_boxes(placement: Placement) -> Geometry:
    """Return the positions of the boxes and arrows of a placement."""
    used = sorted({box.row for box in placement.boxes})
    most_lines = _MOST_LINES if len(used) <= _MANY_ROWS else _FEW_LINES
    texts = tuple(box_text(box, most_lines) for box in placement.boxes)
    row_of = {row: index for index, row in enumerate(used)}
    rows = [row_of[box.row] for box in placement.boxes]
    columns = [box.column for box in placement.boxes]
    routes = choose_routes(placement.arrows, rows, columns, len(placement.columns))
    lefts, gutters, width = _columns(placement, routes)
    heights = [0.0] * len(used)
    for row, text in zip(rows, texts, strict=True):
        heights[row] = max(heights[row], text.height)
    groups = [column.group for column in placement.columns]
    has_devices = len(set(groups)) < len(groups)
    grid = Grid(
        lefts=lefts,
        gutters=gutters,
        columns=columns,
        rows=rows,
        heights=[text.height for text in texts],
        row_heights=heights,
        top=_HEADER + (_DEVICE_HEADER if has_devices else 0),
        width=width,
    )
    arrows, row_tops, bottom = draw_arrows(placement.arrows, routes, grid)
    has_footer = any(column.left_out for column in placement.columns)
    end = bottom + (_FOOTER if has_footer else 0)
    boxes = tuple(
        Rect(lefts[column], row_tops[row], BOX_WIDTH, text.height)
        for column, row, text in zip(columns, rows, texts, strict=True)
    )
    return Geometry(
        width,
        end + 1,
        boxes,
        texts,
        arrows,
        tuple(Rect(left, 0, BOX_WIDTH, end) for left in lefts),
        tuple(_groups(placement, lefts, end)),
    )


def _columns(
    placement: Placement, routes: Routes
) -> tuple[list[float], list[float], float]:
    """Return the left side of the boxes of each column, the left side of the lanes of each
    gutter, and the width of the picture."""
    lefts: list[float] = []
    gutters: list[float] = []
    at = 1.0
    for index, lanes in enumerate(routes.gutter_lanes):
        pads = _pads(placement, index)
        room = LANE * (lanes + 1) if lanes else 0.0
        gutters.append(at + pads[0])
        at += max(sum(pads) + room, _MIN_GUTTER if all(pads) else 0)
        if index < len(placement.columns):
            lefts.append(at)
            at += BOX_WIDTH
    return lefts, gutters, at + 1


def _pads(placement: Placement, index: int) -> tuple[float, float]:
    """Return the space between a gutter and the boxes on its left and on its right."""
    columns = placement.columns
    if index == 0:
        return 0.0, MARGIN
    if index == len(columns):
        return MARGIN, 0.0
    if columns[index - 1].group == columns[index].group:
        return 4.0, 4.0
    return MARGIN, MARGIN


def _groups(placement: Placement, lefts: Sequence[float], height: float) -> list[Rect]:
    found = []
    for index in range(len(placement.groups)):
        own = [i for i, column in enumerate(placement.columns) if column.group == index]
        if not own:
            found.append(Rect(0, 0, 0, 0))
            continue
        left = lefts[min(own)] - MARGIN
        right = lefts[max(own)] + BOX_WIDTH + MARGIN
        found.append(Rect(left, 0, right - left, height))
    return found


def group_notes(placement: Placement) -> list[str]:
    """Return the line below the title of each group: its nodes, and its only device."""
    notes = []
    for index, group in enumerate(placement.groups):
        own = [column for column in placement.columns if column.group == index]
        count = len(group.nodes)
        nodes = "1 node" if count == 1 else f"{plural(count, 'node')}, the same program"
        notes.append(
            f"{nodes} · {column_name(own[0].device, own[0].count)}"
            if len(own) == 1
            else nodes
        )
    return notes


def column_name(device: str, count: int) -> str:
    """Return the title of a column.

    >>> column_name("cpu", 1), column_name("gpu:0-3", 4)
    ('cpu', 'gpu:0-3, 4 equal devices')

    The name of a shared column, such as "51 devices", has the number already.
    """
    has_number = device.startswith(str(count))
    return device if count == 1 or has_number else f"{device}, {count} equal devices"
