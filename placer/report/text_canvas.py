"""A rectangle of terminal cells to draw text in."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len, set_cell_size

from placer.system.printable import make_printable

_ASCII = str.maketrans("┌┐└┘├┤┼─│╌━·▶◀↻≤…→", "++++++|-|.=.><@<~>")
"""Replaces the characters of drawings, for terminals without Unicode."""


def to_ascii(line: str) -> str:
    """Replace the line-drawing characters of a text by ASCII characters.

    >>> to_ascii("├─ 8 bytes ─▶")
    '+- 8 bytes ->'
    """
    return line.translate(_ASCII)


def fit(text: str, width: int) -> str:
    """Cut a text to `width` cells, with an ellipsis at the end.

    >>> fit("softmax_cross_entropy", 8), fit("fc", 8)
    ('softmax…', 'fc')
    """
    line = " ".join(make_printable(text).split())
    if cell_len(line) <= width:
        return line
    return set_cell_size(line, width - 1) + "…" if width > 0 else ""


class Canvas:
    """Lines of cells that are filled with text. Text outside the width is an error."""

    def __init__(self, width: int, height: int) -> None:
        self._rows = [[" "] * width for _ in range(height)]

    def put(self, row: int, column: int, text: str) -> None:
        """Write a text from a cell on. A wide character fills two cells."""
        cells = self._rows[row]
        for character in text:
            width = cell_len(character)
            if width == 0:  # a combining character belongs to the cell before
                cells[column - 1] += character
                continue
            cells[column : column + width] = [character, *[""] * (width - 1)]
            column += width
        assert column <= len(cells), text

    def read(self, row: int, column: int) -> str:
        """Return the character in a cell."""
        return self._rows[row][column]

    def lines(self) -> Iterator[str]:
        """Yield the lines without blanks at the end."""
        for cells in self._rows:
            yield "".join(cells).rstrip()
