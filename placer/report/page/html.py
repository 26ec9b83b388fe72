"""Makes tables, paragraphs and sections as HTML."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from placer.report.page.svg import element, text


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a page.

    Attributes:
        name: its id.
        link: its short title, for the list of sections.
        title: its title.
        content: its HTML.
    """

    name: str
    link: str
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
