"""YAML as a light tree of nodes with positions, read straight from libyaml's events.

No composer runs: libyaml's own overflows the C stack on deep nesting, and anchors,
tags and duplicate keys are refused anyway (reliability, security 4).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from placer.errors import Span, SpecError
from placer.spec.scalars import resolve

MAX_BYTES = 4 << 20
MAX_DEPTH = 32
MAX_NODES = 1_000_000

# The line breaks libyaml counts, YAML 1.1's.
_BREAKS = re.compile("\r\n|[\r\n\x85\u2028\u2029]")


class Text:
    """A spec's text and its lines: makes the spans that errors point at."""

    __slots__ = ("content", "file", "lines")

    def __init__(self, content: str, file: str) -> None:
        self.file = file
        self.content = content
        self.lines = _BREAKS.split(content)

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
        self, source: Text, text: str, value: Any, plain: bool, start: Any, end: Any
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
        return self.source.span(
            self.start.line, self.start.column + 1, max(1, len(self.text))
        )


class Sequence:
    """A list of nodes."""

    __slots__ = ("end", "flow", "items", "source", "start")

    def __init__(self, source: Text, flow: bool, start: Any, end: Any) -> None:
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

    def __init__(self, source: Text, flow: bool, start: Any, end: Any) -> None:
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


def read(content: str, file: str) -> tuple[Node | None, list[SpecError]]:
    """The document's root node and what is wrong beside syntax; None when empty.

    A mistake that makes the rest unreadable (syntax, anchors, tags, limits) is raised
    as SpecError at once.
    """
    content = content.removeprefix("\ufeff")
    source = Text(content, file)
    if len(content.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise too_big(file)
    bad = _UNPRINTABLE.search(content)
    if bad:
        raise _unprintable(source, bad.start())
    errors: list[SpecError] = []
    try:
        return _document(yaml.CSafeLoader(content), source, errors), errors
    except yaml.MarkedYAMLError as error:
        from placer.spec.syntax import explain

        raise explain(error, source) from None


def too_big(file: str) -> SpecError:
    return SpecError(
        f"{file} is over 4 MB: too big for a spec",
        hint="keep rows in files that 'data' names",
    )


# What YAML allows in a stream is what prints; libyaml tells of others without a line.
_UNPRINTABLE = re.compile(
    "[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|\ufeff"
)


def _unprintable(source: Text, offset: int) -> SpecError:
    before = _BREAKS.split(source.content[:offset])
    code = ord(source.content[offset])
    return SpecError(
        f"the character U+{code:04X} may not stand in a spec",
        span=source.span(len(before) - 1, len(before[-1])),
    )


def _document(loader: Any, source: Text, errors: list[SpecError]) -> Node | None:
    root: Node | None = None
    # One frame per open collection: the collection, and the key that waits for a value.
    stack: list[Sequence | Mapping] = []
    keys: list[Scalar | None] = []
    nodes = documents = 0
    next_event = loader.get_event
    while True:
        event = next_event()
        kind = type(event)
        node: Node
        if kind is yaml.ScalarEvent:
            if event.anchor is not None or event.tag is not None:
                raise _refused(event, source)
            text = event.value
            if event.implicit[0]:  # not quoted
                try:
                    value = resolve(text)
                except ValueError as error:
                    span = source.between(event.start_mark, event.end_mark)
                    errors.append(SpecError(f"{text[:40]} {error}", span=span))
                    value = 0
                node = Scalar(
                    source, text, value, True, event.start_mark, event.end_mark
                )
            else:
                node = Scalar(
                    source, text, text, False, event.start_mark, event.end_mark
                )
        elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
            if event.anchor is not None or event.tag is not None:
                raise _refused(event, source)
            if len(stack) >= MAX_DEPTH:
                raise SpecError(
                    f"nested deeper than {MAX_DEPTH} levels",
                    span=source.between(event.start_mark, event.end_mark),
                )
            made = Mapping if kind is yaml.MappingStartEvent else Sequence
            node = made(source, event.flow_style, event.start_mark, event.end_mark)
        elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
            stack[-1].end = event.end_mark
            stack.pop()
            keys.pop()
            continue
        elif kind is yaml.AliasEvent:
            raise _refused(event, source)
        elif kind is yaml.DocumentStartEvent:
            documents += 1
            if documents > 1:
                raise SpecError(
                    "a spec is one YAML document, and here a second one begins",
                    span=source.between(event.start_mark, event.end_mark),
                )
            continue
        elif kind is yaml.StreamEndEvent:
            return root
        else:
            continue
        nodes += 1
        if nodes > MAX_NODES:
            raise SpecError(f"more than {MAX_NODES:,} values: too big for a spec")
        if not stack:
            root = node
        else:
            parent = stack[-1]
            if type(parent) is Sequence:
                parent.items.append(node)
            elif (key := keys[-1]) is not None:
                assert type(parent) is Mapping
                if key.text in parent.keys:
                    errors.append(_twice(key, parent.keys[key.text]))
                else:
                    parent.keys[key.text] = key
                    parent.entries[key.text] = node
                keys[-1] = None
            elif type(node) is Scalar:
                keys[-1] = node
                continue
            else:
                raise SpecError(
                    "a key must be a name, not a list or a mapping", span=node.span
                )
        if type(node) is not Scalar:
            stack.append(node)
            keys.append(None)


def _twice(key: Scalar, first: Scalar) -> SpecError:
    return SpecError(
        f"'{key.text}' is given twice; first on line {first.start.line + 1}",
        span=key.span,
    )


def _refused(event: Any, source: Text) -> SpecError:
    span = source.between(event.start_mark, event.end_mark)
    hint = "write the value out where it is used"
    if isinstance(event, yaml.AliasEvent):
        what, sign = f"the alias *{event.anchor}", "aliases are not read in a spec"
        length = len(event.anchor) + 1
    elif event.anchor is not None:
        what, sign = f"the anchor &{event.anchor}", "anchors are not read in a spec"
        length = len(event.anchor) + 1
    else:
        written = span.text[span.column - 1 :].split(maxsplit=1)
        tag = written[0] if written else event.tag
        what, sign = f"the tag {tag}", "tags are not read in a spec"
        length, hint = len(tag), "a spec holds plain values; leave the tag out"
    return SpecError(
        f"{what}: {sign}",
        span=source.span(event.start_mark.line, event.start_mark.column, length),
        hint=hint,
    )
