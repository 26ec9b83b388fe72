"""The tree of a spec: nodes with positions, and with the names of PyYAML's nodes.

A tree is read from YAML by `yaml_events`, or built by `placer.compiler.frontend.python` from Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from placer.errors import Span

# The line breaks that libyaml counts, which are those of YAML 1.1.
LINE_BREAKS = re.compile("\r\n|[\r\n\x85\u2028\u2029]")


class Text:
    """The YAML text of a spec. Converts positions to the spans of errors."""

    __slots__ = ("content", "file", "lines")

    def __init__(self, content: str, file: str) -> None:
        self.file = file
        self.content = content
        self.lines = LINE_BREAKS.split(content)

    def span(self, line: int, column: int, length: int = 1) -> Span:
        """Return the span at a line and column, which count from 0 as in libyaml."""
        source = self.lines[line] if line < len(self.lines) else ""
        return Span(self.file, line + 1, column + 1, length, source)

    def span_between(self, start: Any, end: Any) -> Span:
        """Return the span between two libyaml marks, cut at the end of the line."""
        line, column = start.line, start.column
        source = self.lines[line] if line < len(self.lines) else ""
        last = end.column if end.line == line else len(source.rstrip())
        length = last - column if last > column else 1
        return Span(self.file, line + 1, column + 1, length, source)


@dataclass(slots=True, eq=False)
class ScalarNode:
    """A string, number, bool or null.

    `text` is the scalar as written, without quotes; `value` is what it means. A `plain`
    scalar has no quotes and is resolved by the core schema of YAML 1.2.
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
            return whole  # escapes in the text shift its columns
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
    """A mapping from keys to nodes, in the order of the file.

    `entries` holds the node of each key, `keys` the scalar of the key itself. `span` is
    that of the first line of a flow mapping, or the first key of a block mapping.
    """

    span: Span
    entries: dict[str, SpecNode]
    keys: dict[str, ScalarNode]

    def __iter__(self) -> Iterator[tuple[str, SpecNode]]:
        return iter(self.entries.items())

    def get(self, key: str) -> SpecNode | None:
        return self.entries.get(key)

    def get_non_null(self, key: str) -> SpecNode | None:
        """Return the node of a key; None if the key is missing or its value is null.

        An optional key with the value null means the same as a missing key.
        """
        node = self.entries.get(key)
        return None if isinstance(node, ScalarNode) and node.value is None else node

    @property
    def value(self) -> dict[str, Any]:
        return {key: node.value for key, node in self.entries.items()}


SpecNode = ScalarNode | SequenceNode | MappingNode


def as_list(node: SpecNode) -> list[SpecNode]:
    """Return the items of a list; a node that is not a list is the only item."""
    return node.items if isinstance(node, SequenceNode) else [node]
