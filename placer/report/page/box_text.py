"""The text of a box in the picture of a placement, line by line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from placer.report.numbers import (
    format_count,
    format_flops,
    format_ms,
    format_size,
    plural,
)
from placer.report.page.facts import Box
from placer.report.page.text_fit import shorten, shorten_middle, text_width

BOX_WIDTH: Final = 240.0
PAD: Final = 11.0
LINE: Final = 17.0
"""The distance of two lines of text."""
TITLE: Final = 13.0
CODE: Final = 12.0
SMALL: Final = 11.0
"""Font sizes."""

_INNER: Final = BOX_WIDTH - 2 * PAD
_GAP: Final = 10.0
"""The smallest distance of a name and its note."""


@dataclass(frozen=True, slots=True)
class BoxText:
    """The text of a box.

    Attributes:
        title: the work of the box.
        figures: its FLOPs, bytes and time, in one or two lines.
        lines: names with their notes.
        more: the number of lines left out, as text.
    """

    title: str
    figures: tuple[str, ...]
    lines: tuple[tuple[str, str], ...]
    more: str

    @property
    def height(self) -> float:
        """The height of the box with this text."""
        count = 1 + len(self.figures) + len(self.lines) + bool(self.more)
        return count * LINE + 2 * PAD - 4


def box_text(box: Box, most_lines: int) -> BoxText:
    """Return the text of a box, shortened to its width and to some of its lines."""
    lines = box.lines[:most_lines]
    more = box.more + len(box.lines) - len(lines)
    return BoxText(
        shorten(box.title, _INNER / 1.08, TITLE),
        tuple(_wrapped(figures(box))),
        tuple(_line(line.name, line.note) for line in lines),
        f"and {format_count(more)} more" if more else "",
    )


def figures(box: Box) -> list[str]:
    """Return the figures of a box that are not zero, as text."""
    found = []
    if box.flops:
        found.append(format_flops(box.flops))
    if box.seconds is not None:
        found.append(format_ms(box.seconds))
    if box.stored:
        found.append(f"{format_size(box.stored)} stored")
    if box.nbytes:
        bound = "≤ " if box.estimated else ""
        found.append(f"{bound}{format_size(box.nbytes)} sent")
    return found


def describe(box: Box, column: str) -> str:
    """Return a sentence about a box for screen readers.

    Args:
        column: the name of its column, such as "worker:0-1, cpu".
    """
    names = ", ".join(line.name for line in box.lines)
    more = f" and {format_count(box.more)} more" if box.more else ""
    parts = [f"{box.title} on {column}", *figures(box), plural(box.ops, "op")]
    return "; ".join([*parts, f"{names}{more}"] if names else parts)


def _wrapped(parts: list[str]) -> list[str]:
    lines: list[str] = []
    for part in parts:
        longer = f"{lines[-1]} · {part}" if lines else part
        if lines and text_width(longer, SMALL) <= _INNER:
            lines[-1] = longer
        else:
            lines.append(part)
    return lines


def _line(name: str, note: str) -> tuple[str, str]:
    """Return a name and its note. The name has precedence if they are too wide."""
    width = text_width(name, CODE, code=True)
    rest = _INNER - width - _GAP
    short = shorten(note, max(rest, _INNER * 0.35), SMALL, code=True)
    if note and rest < _INNER * 0.35:
        room = _INNER - _GAP - text_width(short, SMALL, code=True)
        return shorten_middle(name, room, CODE, code=True), short
    return shorten_middle(name, _INNER, CODE, code=True), short if note else ""
