"""Parses YAML text to a tree, from the events of libyaml.

It does not use the composer of libyaml, which overflows the C stack on deep nesting.
Anchors, aliases, tags and duplicate keys are errors.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from placer.errors import SpecError
from placer.spec.names import quote
from placer.spec.tree import (
    LINE_BREAKS,
    MappingNode,
    ScalarNode,
    SequenceNode,
    SpecNode,
    Text,
)
from placer.spec.yaml_errors import explain_syntax_error
from placer.spec.yaml_scalars import resolve

MAX_BYTES = 4 << 20
MAX_DEPTH = 32
MAX_NODES = 1_000_000


def parse_yaml(content: str, file: str) -> tuple[SpecNode | None, list[SpecError]]:
    """Return the root node, or None for an empty document, and errors that do not end
    the parsing, such as duplicate keys.

    `file` is the name of the file in errors.

    Raises SpecError for other errors: syntax, anchors, tags and limits.
    """
    content = content.removeprefix("\ufeff")
    source = Text(content, file)
    if len(content.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise too_big_error(file)
    bad = _UNPRINTABLE.search(content)
    if bad:
        raise _unprintable(source, bad.start())
    errors: list[SpecError] = []
    try:
        return _document(yaml.CSafeLoader(content), source, errors), errors
    except yaml.MarkedYAMLError as error:
        raise explain_syntax_error(error, source) from None


def too_big_error(file: str) -> SpecError:
    """Return the error for a spec of more than `MAX_BYTES`."""
    return SpecError(
        f"{file} is over 4 MB: too big for a spec",
        hint="put rows in files of their own, which 'data' names",
    )


# YAML allows only printable characters; libyaml reports others without a line.
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


def _document(loader: Any, source: Text, errors: list[SpecError]) -> SpecNode | None:
    root: SpecNode | None = None
    # The open collections, and for each the key whose value comes next.
    stack: list[SequenceNode | MappingNode] = []
    keys: list[ScalarNode | None] = []
    nodes = documents = 0
    next_event = loader.get_event
    while True:
        event = next_event()
        kind = type(event)
        if kind is yaml.ScalarEvent:
            node: SpecNode = _scalar(event, source, errors)
        elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
            if event.anchor is not None or event.tag is not None:
                raise _unsupported_error(event, source)
            collection = MappingNode if kind is yaml.MappingStartEvent else SequenceNode
            node = collection(
                source, event.flow_style, event.start_mark, event.end_mark
            )
            if len(stack) == MAX_DEPTH:
                message = f"nested deeper than {MAX_DEPTH} levels"
                raise SpecError(message, span=node.span)
        elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
            stack.pop().end = event.end_mark
            keys.pop()
            continue
        elif kind is yaml.AliasEvent:
            raise _unsupported_error(event, source)
        elif kind is yaml.DocumentStartEvent and documents:
            message = "a spec is one YAML document, and a second one starts here"
            span = source.span_between(event.start_mark, event.end_mark)
            raise SpecError(message, span=span)
        elif kind is yaml.StreamEndEvent:
            return root
        else:
            documents += kind is yaml.DocumentStartEvent
            continue
        nodes += 1
        if nodes > MAX_NODES:
            raise SpecError(f"more than {MAX_NODES:,} values: too big for a spec")
        if not stack:
            root = node
        elif not _insert(node, stack[-1], keys, errors):
            continue
        if not isinstance(node, ScalarNode):
            stack.append(node)
            keys.append(None)


def _scalar(event: Any, source: Text, errors: list[SpecError]) -> ScalarNode:
    if event.anchor is not None or event.tag is not None:
        raise _unsupported_error(event, source)
    text = value = event.value
    plain = event.implicit[0]
    if plain:
        try:
            value = resolve(text)
        except ValueError as error:
            span = source.span_between(event.start_mark, event.end_mark)
            errors.append(SpecError(f"{text[:40]} {error}", span=span))
            value = 0
    return ScalarNode(source, text, value, plain, event.start_mark, event.end_mark)


def _insert(
    node: SpecNode,
    parent: SequenceNode | MappingNode,
    keys: list[ScalarNode | None],
    errors: list[SpecError],
) -> bool:
    """Insert a node into its collection; return False if it is a key."""
    key = keys[-1]
    if isinstance(parent, SequenceNode):
        parent.items.append(node)
    elif key is not None:
        keys[-1] = None
        if key.text in parent.keys:
            errors.append(_duplicate_key_error(key, parent.keys[key.text]))
        else:
            parent.keys[key.text] = key
            parent.entries[key.text] = node
    elif isinstance(node, ScalarNode):
        keys[-1] = node
        return False
    else:
        message = "a key must be a name, not a list or a mapping"
        raise SpecError(message, span=node.span)
    return True


def _duplicate_key_error(key: ScalarNode, first: ScalarNode) -> SpecError:
    return SpecError(
        f"duplicate key {quote(key.text)}; first on line {first.span.line}",
        span=key.span,
    )


def _unsupported_error(event: Any, source: Text) -> SpecError:
    span = source.span_between(event.start_mark, event.end_mark)
    hint = "write the value out where it is used"
    if event.anchor is not None:
        sign, what = (
            ("*", "alias") if type(event) is yaml.AliasEvent else ("&", "anchor")
        )
        written = f"{sign}{event.anchor}"
    else:
        what, (written, *_) = "tag", span.text[span.column - 1 :].split(maxsplit=1)
        hint = "remove the tag: a spec contains plain values only"
    return SpecError(
        f"the {what} {written} is not allowed in a spec",
        span=source.span(event.start_mark.line, event.start_mark.column, len(written)),
        hint=hint,
    )
