"""The tree of a spec: nodes with positions, with the class names of PyYAML's nodes.

`events` parses a tree from YAML text. `placer.compiler.frontend.python` builds one in
Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from placer.errors import Span

# The line breaks of YAML 1.1, which libyaml counts.
LINE_BREAKS = re.compile("\r\n|[\r\n\x85\u2028\u2029]")


class Text:
    """The YAML text of a spec. Converts positions to the spans of errors."""

    __slots__ = ("content", "file", "lines")

    def __init__(self, content: str, file: str) -> None:
        self.file = file
        self.content = content
        self.lines = LINE_BREAKS.split(content)

    def span(self, line: int, column: int, length: int = 1) -> Span:
        """Return the span at a line and column. Both count from 0, as in libyaml."""
        source = self.lines[line] if line < len(self.lines) else ""
        return Span(self.file, line + 1, column + 1, length, source)

    def span_between(self, start: Any, end: Any) -> Span:
        """Return the span between two libyaml marks, cut at the end of the first
        line.
        """
        line, column = start.line, start.column
        source = self.lines[line] if line < len(self.lines) else ""
        last = end.column if end.line == line else len(source.rstrip())
        length = last - column if last > column else 1
        return Span(self.file, line + 1, column + 1, length, source)


@dataclass(slots=True, eq=False)
class ScalarNode:
    """A string, number, bool or null.

    Attributes:
        text: The scalar as written, without quotes.
        value: The value of the text.
        plain: True if the scalar has no quotes, so the core schema of YAML 1.2 resolves
            it.
    """

    span: Span
    text: str
    value: Any
    plain: bool

    @property
    def inner_span(self) -> Span:
        """The span of the text without its quotes."""
        whole = self.span
        if self.plain or whole.length != len(self.text) + 2:
            return whole  # Escapes in the text shift its columns.
        length = max(1, len(self.text))
        return Span(whole.file, whole.line, whole.column + 1, length, whole.text)


@dataclass(slots=True, eq=False)
class SequenceNode:
    """A list of nodes."""

    span: Span
    items: list[SpecNode]

    @property
    def value(self) -> list[Any]:
        return [item.value for item in self.items]


@dataclass(slots=True, eq=False)
class MappingNode:
    """A mapping from keys to nodes, in file order.

    Attributes:
        entries: The node of each key.
        keys: The scalar of each key.
        span: The first line of a flow mapping, or the first key of a block mapping.
    """

    span: Span
    entries: dict[str, SpecNode]
    keys: dict[str, ScalarNode]

    def __iter__(self) -> Iterator[tuple[str, SpecNode]]:
        return iter(self.entries.items())

    def get(self, key: str) -> SpecNode | None:
        return self.entries.get(key)

    def get_non_null(self, key: str) -> SpecNode | None:
        """Return the node of a key; None if the key is missing or null. An optional key
        with the value null counts as a missing key."""
        node = self.entries.get(key)
        return None if isinstance(node, ScalarNode) and node.value is None else node

    @property
    def value(self) -> dict[str, Any]:
        return {key: node.value for key, node in self.entries.items()}


SpecNode = ScalarNode | SequenceNode | MappingNode


def as_list(node: SpecNode) -> list[SpecNode]:
    """Return the items of a list. Any other node is returned as a list of one item."""
    return node.items if isinstance(node, SequenceNode) else [node]
