"""Draws a placement as SVG text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from importlib.resources import files
from itertools import pairwise
from typing import Final

from placer.report.numbers import format_count, format_ms, format_size, plural
from placer.report.page.box_text import (
    LINE,
    PAD,
    SMALL,
    TITLE,
    BoxText,
    describe,
)
from placer.report.page.facts import Arrow, Box, Placement
from placer.report.page.geometry import (
    MARGIN,
    Geometry,
    column_name,
    group_notes,
    place_boxes,
)
from placer.report.page.shapes import Drawn, Point, Rect
from placer.report.page.svg import class_name, element, number, text
from placer.report.page.text_fit import shorten

HEATS: Final = 10
"""The number of shades for a figure."""
_CORNER: Final = 6.0
_HEAD: Final = 8.0


def draw_placement(placement: Placement) -> str:
    """Return the picture of a placement, for a page with the style of pictures."""
    return _draw(placement, style="")


def draw_standalone(placement: Placement) -> str:
    """Return the picture of a placement as an SVG file with its own style."""
    style = read_style("colors.css") + read_style("picture.css")
    return _draw(placement, style=element("style", style)) + "\n"


def read_style(name: str) -> str:
    """Return the text of a file of this package."""
    return (files("placer.report.page") / name).read_text(encoding="utf-8")


def _draw(placement: Placement, style: str) -> str:
    geometry = place_boxes(placement)
    names = column_names(placement)
    heats = {
        "flops": _heats([box.flops for box in placement.boxes]),
        "bytes": _heats([box.nbytes for box in placement.boxes]),
        "time": _heats([box.seconds or 0.0 for box in placement.boxes]),
    }
    arrows = sorted(
        enumerate(zip(placement.arrows, geometry.arrows, strict=True)),
        key=lambda pair: -pair[1][1].thickness,
    )
    return element(
        "svg",
        style,
        *_panels(placement, geometry),
        element(
            "g",
            *(_line(placement, names, i, *pair) for i, pair in arrows),
            class_="lines",
        ),
        element(
            "g",
            *(
                _box(
                    box,
                    geometry.boxes[box.id],
                    geometry.texts[box.id],
                    names[box.column],
                    [f"{kind}-{levels[box.id]}" for kind, levels in heats.items()],
                )
                for box in placement.boxes
            ),
            class_="boxes",
        ),
        element(
            "g",
            *(_label(i, drawn) for i, drawn in enumerate(geometry.arrows)),
            class_="labels",
        ),
        xmlns="http://www.w3.org/2000/svg",
        class_="picture",
        role="group",
        aria_label=f"Placement of {placement.phase}",
        viewBox=f"0 0 {number(geometry.width)} {number(geometry.height)}",
        width=math.ceil(geometry.width),
        height=math.ceil(geometry.height),
    )


def column_names(placement: Placement) -> list[str]:
    """Return the name of each column with its nodes, such as "worker:0-1, cpu"."""
    return [
        f"{placement.groups[column.group].title},"
        f" {column_name(column.device, column.count)}"
        for column in placement.columns
    ]


def _heats(values: Sequence[float]) -> list[int]:
    """Return the shade of each value relative to the largest: 0 for zero, or 1 to 9."""
    top = max(values, default=0)
    return [math.ceil(value / top * (HEATS - 1)) if value else 0 for value in values]


def _panels(placement: Placement, geometry: Geometry) -> Iterator[str]:
    """Yield the panels of the groups with their titles, and the headers of columns."""
    notes = group_notes(placement)
    for index, (group, rect) in enumerate(
        zip(placement.groups, geometry.groups, strict=True)
    ):
        room = rect.width - 2 * MARGIN
        yield element(
            "g",
            _rect(rect, rx=10),
            _text(shorten(group.title, room, TITLE + 1), "b", rect.x + MARGIN, 24),
            _text(shorten(notes[index], room, SMALL), "t2", rect.x + MARGIN, 42),
            element("title", text(", ".join(group.nodes[:64]))),
            class_="group",
        )
    for column, rect in zip(placement.columns, geometry.columns, strict=True):
        siblings = [c for c in placement.columns if c.group == column.group]
        if len(siblings) > 1:
            name = column_name(column.device, column.count)
            yield _text(shorten(name, rect.width, SMALL), "t2 b", rect.x, 64)
        if column.left_out:
            left_out = f"and {plural(column.left_out, 'more box', 'more boxes')}"
            yield _text(left_out, "t2", rect.x, rect.bottom - 10)


def _box(
    box: Box, rect: Rect, content: BoxText, column: str, heats: Sequence[str]
) -> str:
    left, right = rect.x + PAD, rect.right - PAD
    y = rect.y + PAD + TITLE - 2
    parts = [
        element("title", text(describe(box, column))),
        _rect(rect, rx=7, class_="shape"),
        element(
            "path",
            class_="mark",
            d=f"M{number(rect.x + 7)} {number(rect.y)}h-1a6 6 0 0 0-6 6v"
            f"{number(rect.height - 12)}a6 6 0 0 0 6 6h1"
            f"a3 3 0 0 1-3-3v-{number(rect.height - 6)}a3 3 0 0 1 3-3z",
        ),
        _text(content.title, "b", left, y),
    ]
    for line in content.figures:
        y += LINE
        parts.append(_text(line, "t2", left, y))
    for name, note in content.lines:
        y += LINE
        parts.append(_text(name, "t code", left, y))
        if note:
            parts.append(_text(note, "t2 code end", right, y))
    if content.more:
        y += LINE
        parts.append(_text(content.more, "t2", left, y))
    classes = ["box", class_name("purpose", box.purpose), *heats]
    return element(
        "g",
        *parts,
        id=f"box-{box.id}",
        class_=" ".join(classes),
        data_box=box.id,
        tabindex=0,
        role="button",
        aria_label=describe(box, column),
    )


def _line(
    placement: Placement, names: Sequence[str], index: int, arrow: Arrow, drawn: Drawn
) -> str:
    points = list(drawn.points)
    x, y = points[-1]
    size = _HEAD + drawn.thickness
    half = size * 0.45
    points[-1] = (x, y - size + 1)
    head = (
        f"M{number(x)} {number(y - 0.5)}L{number(x - half)} {number(y - size)}"
        f"H{number(x + half)}z"
    )
    # Arrows may share a line, so the label and the title identify an arrow.
    return element(
        "g",
        element("title", text(describe_arrow(placement, names, arrow))),
        element("path", d=_path(points), stroke_width=drawn.thickness),
        element("path", class_="head", d=head),
        class_="arrow copy" if arrow.between_devices else "arrow",
        data_arrow=index,
        data_source=arrow.source,
        data_target=arrow.target,
    )


def _label(index: int, drawn: Drawn) -> str:
    label = drawn.label
    return _text(
        drawn.text,
        "t2 label",
        label.x + label.width / 2,
        label.bottom - 3,
        data_arrow=index,
    )


def describe_arrow(placement: Placement, names: Sequence[str], arrow: Arrow) -> str:
    """Return a sentence about an arrow.

    Args:
        names: the names of the columns.
    """
    source, target = placement.boxes[arrow.source], placement.boxes[arrow.target]
    bound = "at most " if arrow.estimated else ""
    how = ", measured" if arrow.measured else ""
    size = f"{bound}{format_size(arrow.nbytes)}{how}" if arrow.nbytes else "in memory"
    way = "copied" if arrow.between_devices else "sent"
    more = f" and {format_count(arrow.more)} more" if arrow.more else ""
    values = f": {', '.join(arrow.values)}{more}" if arrow.values else ""
    if arrow.seconds is not None:
        values += f"; the slowest message took {format_ms(arrow.seconds)}"
    edges = ""
    if arrow.edges:
        several = "edges" if len(arrow.edges) > 1 else "edge"
        edges = f", {several} {', '.join(map(str, arrow.edges))}"
    return (
        f"{size} {way} from {names[source.column]} ({source.title})"
        f" to {names[target.column]} ({target.title}){edges}{values}"
    )


def _path(points: Sequence[Point]) -> str:
    """Return the path through points, with round corners."""
    x, y = points[0]
    parts = [f"M{number(x)} {number(y)}"]
    for (before, here), after in zip(pairwise(points), points[2:], strict=False):
        radius = min(_CORNER, _distance(before, here) / 2, _distance(here, after) / 2)
        near, far = _toward(here, before, radius), _toward(here, after, radius)
        parts.append(
            f"L{number(near[0])} {number(near[1])}"
            f"Q{number(here[0])} {number(here[1])} {number(far[0])} {number(far[1])}"
        )
    x, y = points[-1]
    return "".join([*parts, f"L{number(x)} {number(y)}"])


def _distance(first: Point, second: Point) -> float:
    return abs(first[0] - second[0]) + abs(first[1] - second[1])


def _toward(start: Point, end: Point, length: float) -> Point:
    """Return the point at a distance from `start` on the way to `end`."""
    whole = _distance(start, end)
    if not whole:
        return start
    part = length / whole
    return start[0] + (end[0] - start[0]) * part, start[1] + (end[1] - start[1]) * part


def _rect(rect: Rect, rx: float, class_: str | None = None) -> str:
    return element(
        "rect",
        x=rect.x,
        y=rect.y,
        width=rect.width,
        height=rect.height,
        rx=rx,
        class_=class_,
    )


def _text(string: str, class_: str, x: float, y: float, **attributes: object) -> str:
    return element("text", text(string), x=x, y=y, class_=class_, **attributes)
