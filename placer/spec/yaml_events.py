"""YAML text to a tree, straight from libyaml's events.

No composer runs: libyaml's own overflows the C stack on deep nesting, and anchors,
tags and duplicate keys are refused anyway.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from placer.errors import SpecError
from placer.spec.names import quoted
from placer.spec.tree import BREAKS, Mapping, Node, Scalar, Sequence, Text
from placer.spec.yaml_errors import explain
from placer.spec.yaml_scalars import resolve

MAX_BYTES = 4 << 20
MAX_DEPTH = 32
MAX_NODES = 1_000_000


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
    before = BREAKS.split(source.content[:offset])
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
        if kind is yaml.ScalarEvent:
            node: Node = _scalar(event, source, errors)
        elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
            if event.anchor is not None or event.tag is not None:
                raise _refused(event, source)
            made = Mapping if kind is yaml.MappingStartEvent else Sequence
            node = made(source, event.flow_style, event.start_mark, event.end_mark)
            if len(stack) == MAX_DEPTH:
                message = f"nested deeper than {MAX_DEPTH} levels"
                raise SpecError(message, span=node.span)
        elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
            stack.pop().end = event.end_mark
            keys.pop()
            continue
        elif kind is yaml.AliasEvent:
            raise _refused(event, source)
        elif kind is yaml.DocumentStartEvent and documents:
            message = "a spec is one YAML document, and here a second one begins"
            span = source.between(event.start_mark, event.end_mark)
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
        elif not _put(node, stack[-1], keys, errors):
            continue
        if not isinstance(node, Scalar):
            stack.append(node)
            keys.append(None)


def _scalar(event: Any, source: Text, errors: list[SpecError]) -> Scalar:
    if event.anchor is not None or event.tag is not None:
        raise _refused(event, source)
    text = value = event.value
    plain = event.implicit[0]
    if plain:
        try:
            value = resolve(text)
        except ValueError as error:
            span = source.between(event.start_mark, event.end_mark)
            errors.append(SpecError(f"{text[:40]} {error}", span=span))
            value = 0
    return Scalar(source, text, value, plain, event.start_mark, event.end_mark)


def _put(
    node: Node,
    parent: Sequence | Mapping,
    keys: list[Scalar | None],
    errors: list[SpecError],
) -> bool:
    """Put a node into its collection; False for a key, whose value comes next."""
    key = keys[-1]
    if isinstance(parent, Sequence):
        parent.items.append(node)
    elif key is not None:
        keys[-1] = None
        if key.text in parent.keys:
            errors.append(_twice(key, parent.keys[key.text]))
        else:
            parent.keys[key.text] = key
            parent.entries[key.text] = node
    elif isinstance(node, Scalar):
        keys[-1] = node
        return False
    else:
        message = "a key must be a name, not a list or a mapping"
        raise SpecError(message, span=node.span)
    return True


def _twice(key: Scalar, first: Scalar) -> SpecError:
    return SpecError(
        f"{quoted(key.text)} is given twice; first on line {first.span.line}",
        span=key.span,
    )


def _refused(event: Any, source: Text) -> SpecError:
    span = source.between(event.start_mark, event.end_mark)
    hint = "write the value out where it is used"
    if event.anchor is not None:
        sign, what = (
            ("*", "alias") if type(event) is yaml.AliasEvent else ("&", "anchor")
        )
        written = f"{sign}{event.anchor}"
    else:
        what, (written, *_) = "tag", span.text[span.column - 1 :].split(maxsplit=1)
        hint = "a spec holds plain values; leave the tag out"
    return SpecError(
        f"the {what} {written}: a spec holds no {what}",
        span=source.span(event.start_mark.line, event.start_mark.column, len(written)),
        hint=hint,
    )
