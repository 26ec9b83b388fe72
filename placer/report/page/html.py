"""Makes tables, paragraphs and sections as HTML."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from placer.report.page.svg import element, text

_MANY_COLUMNS: Final = 8
"""A table with more columns is printed on paper as lines."""


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a page.

    Attributes:
        name: its id.
        title: its title, also in the list of sections.
        content: its HTML.
    """

    name: str
    title: str
    content: str


def chart_with_title(title: str, chart: str, note: str = "") -> str:
    """Return a chart under its title and a note; empty without a chart."""
    if not chart:
        return ""
    lead = paragraph(note) if note else ""
    return element("h3", text(title)) + lead + scroll(chart)


def scroll(chart: str) -> str:
    """Return a chart that scrolls if it is wider than the page."""
    return element("div", chart, class_="scroll")


def html_table(
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Collection[int] = (),
    code: Collection[int] = (),
    buttons: Mapping[int, Mapping[str, object]] | None = None,
) -> str:
    """Return a table as HTML.

    Args:
        names: the heads of the columns.
        rows: the cells as plain text.
        numbers: columns that are aligned on the right.
        code: columns in a fixed-width font.
        buttons: the attributes of the rows that begin with a button, by number.
    """
    classes = [
        "n" if i in numbers else "code" if i in code else None
        for i in range(len(names))
    ]
    is_wide = len(names) > _MANY_COLUMNS
    head = [
        element(
            "th", _breaking(name), scope="col", class_="n" if i in numbers else None
        )
        for i, name in enumerate(names)
    ]
    body = []
    for number, row in enumerate(rows):
        cells = [text(cell) for cell in row]
        if buttons and number in buttons:
            attributes = {"class_": "link code", **buttons[number]}
            cells[0] = element("button", cells[0], type="button", **attributes)
        body.append(
            element(
                "tr",
                *(
                    element("td", cell, class_=class_, data_name=name)
                    for cell, class_, name in zip(
                        cells,
                        classes,
                        names if is_wide else [None] * len(names),
                        strict=True,
                    )
                ),
            )
        )
    return element(
        "div",
        element(
            "table",
            element("thead", element("tr", *head)),
            element("tbody", *body),
        ),
        class_="wide many-columns" if is_wide else "wide",
    )


def _breaking(name: str) -> str:
    """Return a name as HTML that may break into lines after dots and underscores."""
    escaped = text(name)
    return escaped.replace(".", ".<wbr />").replace("_", "_<wbr />")


def paragraph(string: str, class_: str = "lead") -> str:
    """Return a paragraph, with the parts between backticks as code."""
    return element("p", with_code(string), class_=class_)


def with_code(string: str) -> str:
    """Return a text as HTML, with the parts between backticks as code."""
    parts = string.split("`")
    if len(parts) % 2 == 0:
        return text(string)
    return "".join(
        element("code", text(part)) if i % 2 else text(part)
        for i, part in enumerate(parts)
    )
