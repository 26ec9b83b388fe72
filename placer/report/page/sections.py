"""The sections of a page as HTML text."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from placer.report.numbers import format_count, plural
from placer.report.page.facts import LayerRow, Page, Placement
from placer.report.page.picture import draw_placement
from placer.report.page.svg import class_name, element, text

Section = tuple[str, str, str]
"""The id of a section, its title, and its content."""

MOST_LAYERS: Final = 500
"""The number of rows in the table of layers. The search finds all layers."""


def sections(page: Page) -> Iterator[Section]:
    """Yield the sections of a page that have facts."""
    if page.placement is not None:
        yield "placement", "Placement", _placement(page, page.placement)
    if page.layers:
        yield "layers", "Layers", _layers(page.layers)


def _placement(page: Page, placement: Placement) -> str:
    lead = (
        f"The parts of {placement.phase}. A column is a device and time runs down."
        " An arrow is a message to another node; its label has the bytes of a step."
    )
    return "".join(
        [
            _paragraph(lead),
            _paragraph(page.source) if page.source else "",
            _tools(placement),
            element(
                "div",
                element(
                    "figure",
                    draw_placement(placement),
                    class_="scroll",
                    tabindex="0",
                    aria_label="Picture of the placement",
                ),
                _panel(),
                class_="stage",
            ),
            _paragraph(f"Not drawn: {placement.left_out}")
            if placement.left_out
            else "",
        ]
    )


def _tools(placement: Placement) -> str:
    choices = {"purpose": "purpose"}
    if any(box.flops for box in placement.boxes):
        choices["flops"] = "FLOPs"
    if any(box.nbytes for box in placement.boxes):
        choices["bytes"] = "bytes sent"
    if any(box.seconds is not None for box in placement.boxes):
        choices["time"] = "measured time"
    options = [
        element("option", text(label), value=value) for value, label in choices.items()
    ]
    purposes = dict.fromkeys(box.purpose for box in placement.boxes)
    legend = [
        element(
            "li", element("i"), text(purpose), class_=class_name("purpose", purpose)
        )
        for purpose in purposes
    ]
    notes = []
    if any(arrow.estimated for arrow in placement.arrows):
        notes.append(
            "≤ marks an upper bound: sparse tables send the rows of distinct keys"
        )
    if any(arrow.between_devices for arrow in placement.arrows):
        notes.append("a dashed line is a copy between devices of a node")
    return "".join(
        [
            element(
                "div",
                element(
                    "label",
                    text("Color by"),
                    element("select", *options, id="color", autocomplete="off"),
                ),
                element(
                    "label",
                    element("input", type="checkbox", id="fit", autocomplete="off"),
                    text("Fit to the width"),
                ),
                element("ul", *legend, class_="legend"),
                class_="row",
            ),
            _paragraph(f"{'; '.join(notes)}.".capitalize()) if notes else "",
        ]
    )


def _panel() -> str:
    keys = [
        ("Tab", "and arrow keys move between boxes"),
        ("Enter", "opens a box"),
        ("Esc", "closes it"),
        ("/", "starts a search"),
    ]
    lines = [
        element("li", element("kbd", text(key)), text(f" {does}")) for key, does in keys
    ]
    return element(
        "aside",
        element(
            "p",
            text(
                "Select a box to see its layers, its ops, its messages and the reason for"
                " its place."
            ),
            class_="hint",
        ),
        element("ul", *lines, class_="hint keys"),
        id="panel",
        aria_label="Details of a box",
        aria_live="polite",
    )


def _layers(layers: Sequence[LayerRow]) -> str:
    rows = [
        (
            layer.name,
            layer.kind,
            layer.output,
            format_count(layer.parameters) if layer.parameters else "",
            layer.place,
        )
        for layer in layers[:MOST_LAYERS]
    ]
    more = len(layers) - len(rows)
    return html_table(
        ("layer", "kind", "output", "parameters", "place"),
        rows,
        numbers={3},
        code={0, 2, 4},
    ) + (
        _paragraph(f"{plural(more, 'more layer')}: the search finds them.")
        if more
        else ""
    )


def html_table(
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Collection[int] = (),
    code: Collection[int] = (),
) -> str:
    """Return a table as HTML.

    Args:
        names: the heads of the columns.
        rows: the cells as plain text.
        numbers: columns that are aligned on the right.
        code: columns in a fixed-width font.
    """
    classes = [
        "n" if i in numbers else "code" if i in code else None
        for i in range(len(names))
    ]
    head = [
        element("th", text(name), scope="col", class_="n" if i in numbers else None)
        for i, name in enumerate(names)
    ]
    body = [
        element(
            "tr",
            *(
                element("td", text(cell), class_=class_)
                for cell, class_ in zip(row, classes, strict=True)
            ),
        )
        for row in rows
    ]
    return element(
        "div",
        element(
            "table",
            element("thead", element("tr", *head)),
            element("tbody", *body),
        ),
        class_="wide",
    )


def _paragraph(string: str, class_: str = "lead") -> str:
    return element("p", text(string), class_=class_)
