"""Replaces parts of the source of a module."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

Located = ast.expr | ast.stmt | ast.alias


@dataclass(frozen=True, order=True)
class Edit:
    """The range of bytes of a text to replace."""

    start: int
    stop: int
    text: str = ""


class Positions:
    """Converts lines and nodes to positions in a text, in bytes of UTF-8."""

    def __init__(self, text: str) -> None:
        self._bytes = text.encode()
        self._lines = [0]
        for line in self._bytes.split(b"\n"):
            self._lines.append(self._lines[-1] + len(line) + 1)

    def _range(self, node: Located) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._lines[node.lineno - 1] + node.col_offset,
            self._lines[node.end_lineno - 1] + node.end_col_offset,
        )

    def text(self, node: Located) -> str:
        start, stop = self._range(node)
        return self._bytes[start:stop].decode()

    def edit(self, node: Located, text: str) -> Edit:
        return Edit(*self._range(node), text)


def apply(text: str, edits: Sequence[Edit]) -> str:
    """Return a text after edits that do not overlap."""
    content = text.encode()
    for edit in sorted(edits, reverse=True):
        content = content[: edit.start] + edit.text.encode() + content[edit.stop :]
    return content.decode()
