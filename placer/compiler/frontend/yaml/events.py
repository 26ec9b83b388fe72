"""Parses YAML text to a tree, from the events of libyaml.

The composer of libyaml is not used: deeply nested text overflows its C stack. Anchors,
aliases, tags and duplicate keys are errors.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from placer.compiler.frontend.entries.names import quote
from placer.compiler.frontend.yaml.errors import explain_syntax_error
from placer.compiler.frontend.yaml.scalars import resolve
from placer.compiler.frontend.yaml.tree import (
    LINE_BREAKS,
    MappingNode,
    ScalarNode,
    SequenceNode,
    SpecNode,
    Text,
)
from placer.errors import Span, SpecError

MAX_BYTES = 4 << 20
MAX_DEPTH = 32
MAX_NODES = 1_000_000


def parse_yaml(
    content: str, file: str, *, before: str = ""
) -> tuple[SpecNode | None, list[SpecError]]:
    """Parse YAML text. Return the root node, and the errors that do not stop the
    parser.

    Duplicate keys are such errors. The root is None for an empty document.

    Args:
        content: The YAML text.
        file: The name of the file in errors.
        before: Text before the YAML in its first line, for columns in errors.

    Raises:
        SpecError: Syntax errors, anchors, tags, and texts over a limit.
    """
    content = content.removeprefix("\ufeff")
    source = Text(before + content, file)
    if len(content.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise too_big_error(file)
    bad = _UNPRINTABLE.search(content)
    if bad:
        raise _unprintable(source, len(before) + bad.start())
    try:
        parser = _Parser(" " * len(before) + content, source)
        return parser.document(), parser.errors
    except yaml.MarkedYAMLError as error:
        raise explain_syntax_error(error, source) from None


def too_big_error(file: str) -> SpecError:
    """Return the error for a spec of more than `MAX_BYTES`."""
    return SpecError(
        f"{file} is over 4 MB: too big for a spec",
        hint="move rows to separate files, and name the files in 'data'",
    )


# YAML allows only printable characters. For other characters, libyaml reports no line.
_UNPRINTABLE = re.compile(
    "[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|\ufeff"
)


def _unprintable(source: Text, offset: int) -> SpecError:
    before = LINE_BREAKS.split(source.content[:offset])
    code = ord(source.content[offset])
    return SpecError(
        f"the character U+{code:04X} is not allowed in a spec",
        span=source.span(len(before) - 1, len(before[-1])),
    )


class _Parser:
    """Builds the tree of a text.

    Attributes:
        source: The text, which gives the positions of nodes.
        errors: Errors that do not stop the parser.
    """

    def __init__(self, content: str, source: Text) -> None:
        self.errors: list[SpecError] = []
        self._source = source
        self._next_event = yaml.CSafeLoader(content).get_event
        self._nodes = 0

    def document(self) -> SpecNode | None:
        """Return the root node; None for an empty document."""
        root: SpecNode | None = None
        documents = 0
        while not isinstance(event := self._next_event(), yaml.StreamEndEvent):
            if isinstance(event, yaml.NodeEvent):
                root = self._node(event, 0)
            elif isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    message = (
                        "a spec is one YAML document, and a second one starts here"
                    )
                    raise SpecError(message, span=self._span(event))
        return root

    def _node(self, event: Any, depth: int, *, is_key: bool = False) -> SpecNode:
        """Return the node that starts with an event, `depth` collections deep."""
        if event.anchor is not None or event.tag is not None:
            raise _unsupported_error(event, self._source)
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise SpecError(f"more than {MAX_NODES:,} values: too big for a spec")
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event)
        if depth == MAX_DEPTH:
            message = f"nested deeper than {MAX_DEPTH} levels"
            raise SpecError(message, span=self._span(event))
        if is_key:
            message = "a key must be a name, not a list or a mapping"
            raise SpecError(message, span=self._span(event))
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        read = self._mapping if is_mapping else self._sequence
        return read(event, depth)

    def _scalar(self, event: Any) -> ScalarNode:
        text = value = event.value
        plain = event.implicit[0]
        if plain:
            try:
                value = resolve(text)
            except ValueError as error:
                message = f"{text[:40]} {error}"
                self.errors.append(SpecError(message, span=self._span(event)))
                value = 0
        return ScalarNode(self._span(event), text, value, plain)

    def _sequence(self, start: Any, depth: int) -> SequenceNode:
        items: list[SpecNode] = []
        while not isinstance(event := self._next_event(), yaml.SequenceEndEvent):
            items.append(self._node(event, depth + 1))
        return SequenceNode(self._span(start, event), items)

    def _mapping(self, start: Any, depth: int) -> MappingNode:
        entries: dict[str, SpecNode] = {}
        keys: dict[str, ScalarNode] = {}
        while not isinstance(event := self._next_event(), yaml.MappingEndEvent):
            key = self._node(event, depth + 1, is_key=True)
            value = self._node(self._next_event(), depth + 1)
            assert isinstance(key, ScalarNode)
            if key.text in keys:
                first = keys[key.text].span.line
                message = f"duplicate key {quote(key.text)}; first on line {first}"
                self.errors.append(SpecError(message, span=key.span))
            else:
                keys[key.text] = key
                entries[key.text] = value
        is_block = not start.flow_style and keys
        span = next(iter(keys.values())).span if is_block else self._span(start, event)
        return MappingNode(span, entries, keys)

    def _span(self, start: Any, end: Any = None) -> Span:
        return self._source.span_between(start.start_mark, (end or start).end_mark)


def _unsupported_error(event: Any, source: Text) -> SpecError:
    span = source.span_between(event.start_mark, event.end_mark)
    hint = "repeat the value instead"
    if event.anchor is not None:
        sign, what = (
            ("*", "alias") if type(event) is yaml.AliasEvent else ("&", "anchor")
        )
        written = f"{sign}{event.anchor}"
    else:
        what, (written, *_) = "tag", span.text[span.column - 1 :].split(maxsplit=1)
        hint = "remove the tag: a spec contains only plain values"
    return SpecError(
        f"the {what} {written} is not allowed in a spec",
        span=source.span(event.start_mark.line, event.start_mark.column, len(written)),
        hint=hint,
    )
