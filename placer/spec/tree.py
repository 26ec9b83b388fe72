"""A spec as a light tree of nodes with positions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from placer.errors import Span

# The line breaks libyaml counts, YAML 1.1's.
BREAKS = re.compile("\r\n|[\r\n\x85\u2028\u2029]")


class Origin(Protocol):
    """What a node comes from: it knows where the node stands."""

    def between(self, start: Any, end: Any) -> Span:
        """From one position to another; a span stays on its first line."""


@dataclass(frozen=True, slots=True)
class Line:
    """The line of Python that says a node: there is no position beside it."""

    where: Span

    def between(self, start: Any, end: Any) -> Span:
        return self.where


class Text:
    """A spec's text and its lines: makes the spans that errors point at."""

    __slots__ = ("content", "file", "lines")

    def __init__(self, content: str, file: str) -> None:
        self.file = file
        self.content = content
        self.lines = BREAKS.split(content)

    def span(self, line: int, column: int, length: int = 1) -> Span:
        """A span by zero-based line and column, as libyaml's marks count."""
        source = self.lines[line] if line < len(self.lines) else ""
        return Span(self.file, line + 1, column + 1, length, source)

    def between(self, start: Any, end: Any) -> Span:
        """From one mark to another; a span stays on its first line."""
        if end.line == start.line:
            length = end.column - start.column
        elif start.line < len(self.lines):
            length = len(self.lines[start.line].rstrip()) - start.column
        else:
            length = 1
        return self.span(start.line, start.column, max(1, length))


class Scalar:
    """A string, number, bool or null. `plain` ones are read by YAML 1.2's core rules."""

    __slots__ = ("end", "plain", "source", "start", "text", "value")

    def __init__(
        self,
        source: Origin,
        text: str,
        value: Any,
        plain: bool,
        start: Any = None,
        end: Any = None,
    ) -> None:
        self.source = source
        self.text = text
        self.value = value
        self.plain = plain
        self.start = start
        self.end = end

    @property
    def span(self) -> Span:
        return self.source.between(self.start, self.end)

    @property
    def inside(self) -> Span:
        """The span of the text itself, without quotes."""
        whole = self.span
        if self.plain or whole.length != len(self.text) + 2:
            return whole  # with escapes inside, columns no longer match
        length = max(1, len(self.text))
        return Span(whole.file, whole.line, whole.column + 1, length, whole.text)


class Sequence:
    """A list of nodes."""

    __slots__ = ("end", "flow", "items", "source", "start")

    def __init__(
        self, source: Origin, flow: bool, start: Any = None, end: Any = None
    ) -> None:
        self.source = source
        self.items: list[Node] = []
        self.flow = flow
        self.start = start
        self.end = end

    @property
    def value(self) -> list[Any]:
        return [item.value for item in self.items]

    @property
    def span(self) -> Span:
        return self.source.between(self.start, self.end)


class Mapping:
    """Keys and nodes, in the file's order. `keys` holds the scalar of each key."""

    __slots__ = ("end", "entries", "flow", "keys", "source", "start")

    def __init__(
        self, source: Origin, flow: bool, start: Any = None, end: Any = None
    ) -> None:
        self.source = source
        self.entries: dict[str, Node] = {}
        self.keys: dict[str, Scalar] = {}
        self.flow = flow
        self.start = start
        self.end = end

    def __iter__(self) -> Iterator[tuple[str, Node]]:
        return iter(self.entries.items())

    def get(self, key: str) -> Node | None:
        return self.entries.get(key)

    def given(self, key: str) -> Node | None:
        """The node of a key; None where it is null: what may be left out is not given."""
        node = self.entries.get(key)
        return None if isinstance(node, Scalar) and node.value is None else node

    @property
    def value(self) -> dict[str, Any]:
        return {key: node.value for key, node in self.entries.items()}

    @property
    def span(self) -> Span:
        """A flow mapping's first line, a block mapping's first key."""
        if not self.flow and self.keys:
            return next(iter(self.keys.values())).span
        return self.source.between(self.start, self.end)


Node = Scalar | Sequence | Mapping
