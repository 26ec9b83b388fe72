"""Overrides of spec keys: `--set KEY=VALUE` and `placer.compile(..., overrides=...)`.

Overrides change the tree of a spec before it is decoded, so their values are checked
like other values of the spec.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from placer.compiler.frontend.entries.names import quote
from placer.compiler.frontend.entries.values import is_scope
from placer.compiler.frontend.yaml.events import MAX_DEPTH, parse_yaml
from placer.compiler.frontend.yaml.problems import Problems
from placer.compiler.frontend.yaml.tree import (
    MappingNode,
    ScalarNode,
    SequenceNode,
    SpecNode,
)
from placer.errors import Span, SpecError, did_you_mean
from placer.plan.settings.checks import describe_value

OPTION = "--set"
_NUMBER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Override:
    """A key of a spec, as parts with positions, and its new value."""

    key: tuple[ScalarNode, ...]
    value: SpecNode

    @property
    def text(self) -> str:
        """The override as `KEY=VALUE`, with the value as JSON."""
        value = json.dumps(self.value.value, ensure_ascii=False)
        return f"{_join(self.key)}={value}"


def read_override(text: str) -> Override:
    """Parse `KEY=VALUE`, with a value in YAML. Raises SpecError with a position."""
    key, sign, value = text.partition("=")
    if not sign:
        raise SpecError(
            f"{quote(text)} is not KEY=VALUE",
            hint=f"write for example {OPTION} train.epochs=5",
        )
    span = Span(OPTION, 1, 1, len(key), text.partition("\n")[0])
    node, errors = parse_yaml(value, OPTION, before=f"{key}=")
    if errors:
        raise errors[0]
    if node is None:
        node = ScalarNode(span, "", None, plain=True)
    return Override(split_key(key, span), node)


def split_key(key: str, span: Span, *, each_at: bool = True) -> tuple[ScalarNode, ...]:
    """Split a key such as `train.epochs` at its dots.

    Args:
        key: The key.
        span: The position of the key.
        each_at: True gives each part its own position in the span. False gives all
            parts the whole span.

    Raises:
        SpecError: A part is empty, or the key has too many parts.
    """
    parts: list[ScalarNode] = []
    column = span.column
    for part in key.split("."):
        length = max(1, len(part))
        at = Span(span.file, span.line, column, length, span.text) if each_at else span
        if not part:
            message = f"{quote(key)} has an empty part"
            hint = "join the keys of a spec with dots, as in train.epochs"
            raise SpecError(message, span=at, hint=hint)
        parts.append(ScalarNode(at, part, part, plain=True))
        column += len(part) + 1
    if len(parts) > MAX_DEPTH:
        raise SpecError(f"nested deeper than {MAX_DEPTH} levels", span=span)
    return tuple(parts)


def apply_overrides(
    root: MappingNode, overrides: Iterable[Override], problems: Problems
) -> MappingNode:
    """Return a tree with the overrides applied in order. The given tree does not
    change. Overrides that do not fit the tree are reported."""
    for override in overrides:
        try:
            changed = _set(root, override, 0)
        except SpecError as error:
            problems.add_error(error)
            continue
        assert isinstance(changed, MappingNode)
        root = changed
    return root


def _set(node: SpecNode | None, override: Override, depth: int) -> SpecNode:
    """Return a copy of a node with the new value, from the key's part `depth` on."""
    if depth == len(override.key):
        return override.value
    if isinstance(node, SequenceNode):
        return _set_item(node, override, depth)
    part = override.key[depth]
    if node is None or (isinstance(node, ScalarNode) and node.value is None):
        node = MappingNode(part.span, {}, {})
    if not isinstance(node, MappingNode):
        before = _join(override.key[:depth])
        raise SpecError(
            f"{before} is {describe_value(node.value)}, which has no key"
            f" {quote(part.text)}",
            span=part.span,
            hint=f"set the whole value: {before}={{{part.text}: ...}}",
        )
    if _is_one_optimizer(node, override.key[:depth]) and _NUMBER.fullmatch(part.text):
        if int(part.text) > 0:
            raise _no_item(SequenceNode(node.span, [node]), override.key, depth)
        return _set(node, override, depth + 1)
    value = _set(node.get(part.text), override, depth + 1)
    is_new = part.text not in node.keys or depth == len(override.key) - 1
    keys = {**node.keys, part.text: part} if is_new else node.keys
    return MappingNode(node.span, {**node.entries, part.text: value}, keys)


def _set_item(node: SequenceNode, override: Override, depth: int) -> SequenceNode:
    """Set a key of a list item, which is selected by its index or by the name of an op.
    A list with a single mapping that is not an op, such as `train.optimizer`, counts as
    this mapping."""
    part = override.key[depth]
    if not _NUMBER.fullmatch(part.text) and _is_one_mapping(node):
        return SequenceNode(node.span, [_set(node.items[0], override, depth)])
    by_name = not _NUMBER.fullmatch(part.text)
    if by_name:
        found = _index_of_op(node.items, part.text)
        number = found if found is not None else -1
    else:
        number = int(part.text)
    if not 0 <= number < len(node.items):
        raise _no_item(node, override.key, depth)
    item = node.items[number]
    # A scope contains the named op: look in the ops of the scope.
    if by_name and isinstance(item, MappingNode) and is_scope(item):
        ops = _set(item.entries["ops"], override, depth)
        changed: SpecNode = MappingNode(
            item.span, {**item.entries, "ops": ops}, item.keys
        )
    else:
        changed = _set(item, override, depth + 1)
    items = [*node.items[:number], changed, *node.items[number + 1 :]]
    return SequenceNode(node.span, items)


def _is_one_optimizer(node: MappingNode, key: Sequence[ScalarNode]) -> bool:
    """Whether a node is the only optimizer, which also is number 0 of a list."""
    return _join(key) == "train.optimizer" and bool(node.entries)


def _is_one_mapping(node: SequenceNode) -> bool:
    match node.items:
        case [MappingNode() as item]:
            return not is_scope(item) and "name" not in item.entries
    return False


def _index_of_op(items: Sequence[SpecNode], name: str) -> int | None:
    """Return the index of the op with this name, or of the scope that contains it."""
    holds = (name in _op_names([item]) for item in items)
    return next((index for index, found in enumerate(holds) if found), None)


def _op_names(items: Iterable[SpecNode]) -> Iterator[str]:
    for item in items:
        if not isinstance(item, MappingNode):
            continue
        name = item.get("name")
        if isinstance(name, ScalarNode):
            yield name.text
        elif is_scope(item) and isinstance(inner := item.entries["ops"], SequenceNode):
            yield from _op_names(inner.items)


def _no_item(node: SequenceNode, key: Sequence[ScalarNode], depth: int) -> SpecError:
    part, where = key[depth], _join(key[:depth])
    names = list(_op_names(node.items))
    hint: str | None
    if names and not _NUMBER.fullmatch(part.text):
        message = f"no op in {where} is called {quote(part.text)}"
        hint = did_you_mean(part.text, names)
    else:
        count = len(node.items)
        has = "1 item" if count == 1 else f"{count} items"
        message = f"{where} is a list of {has}; it has no item {quote(part.text)}"
        first = f"{where}.0"
        if count and isinstance(node.items[0], MappingNode):
            rest = key[depth + 1 :] if _NUMBER.fullmatch(part.text) else key[depth:]
            first = ".".join([first, *(each.text for each in rest)])
        hint = f"items are numbered from 0: {first}" if count else None
    return SpecError(message, span=part.span, hint=hint)


def _join(key: Iterable[ScalarNode]) -> str:
    return ".".join(part.text for part in key)
