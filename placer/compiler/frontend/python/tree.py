"""Converts Python values to nodes of a spec's tree, at the line of the call."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import isroutine
from math import isfinite
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from placer.compiler.frontend.python.variable import Variable
from placer.compiler.frontend.yaml.events import MAX_DEPTH
from placer.compiler.frontend.yaml.tree import (
    MappingNode,
    ScalarNode,
    SequenceNode,
    SpecNode,
)
from placer.errors import Span, SpecError
from placer.place import Place

if TYPE_CHECKING:
    from placer.compiler.frontend.python.program import Program


def scalar_node(value: str | float | None, span: Span) -> ScalarNode:
    """Return the node of a valid text, number, bool or None."""
    text = value if isinstance(value, str) else repr(value)
    return ScalarNode(span, text, value, plain=True)


def mapping_node(entries: Mapping[str, SpecNode | None], span: Span) -> MappingNode:
    """Return a mapping of nodes, without entries that are None."""
    nodes = {key: node for key, node in entries.items() if node is not None}
    return MappingNode(span, nodes, {key: scalar_node(key, span) for key in nodes})


def to_node(
    value: object, span: Span, program: Program | None, depth: int = 0
) -> SpecNode:
    """Return a value as a node. A Variable of `program` becomes its name, and a Place
    its text. A node is returned unchanged. Numbers of other libraries become Python
    numbers. Raises SpecError at `span` for a value that a spec cannot express."""
    if depth == MAX_DEPTH:
        raise SpecError(f"nested deeper than {MAX_DEPTH} levels", span=span)
    if isinstance(value, MappingNode | SequenceNode | ScalarNode):
        return value
    if isinstance(value, Variable):
        if value.program is not program:
            raise SpecError(
                f"'{value.name}' is a value of a different program",
                span=span,
                hint="put all ops of a program inside `with program:`",
            )
        return scalar_node(value.name, span)
    if isinstance(value, Mapping):
        entries: dict[str, SpecNode] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                message = f"a key must be a string, not {_short_repr(key)}"
                raise SpecError(message, span=span)
            entries[key] = to_node(item, span, program, depth + 1)
        return mapping_node(entries, span)
    if isinstance(value, list | tuple):
        items = [to_node(item, span, program, depth + 1) for item in value]
        return SequenceNode(span, items)
    return scalar_node(_to_scalar(value, span), span)


def _to_scalar(value: object, span: Span) -> str | float | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Place):
        return str(value)
    if isinstance(value, str):
        if any("\ud800" <= character <= "\udfff" for character in value):
            message = f"{value!r} cannot be written to a file as UTF-8"
            raise SpecError(message, span=span)
        return str(value)
    if isinstance(value, Integral):
        if not -(2**63) <= int(value) < 2**64:
            raise SpecError(f"{_short_repr(value)} does not fit in 64 bits", span=span)
        return int(value)
    if isinstance(value, Real):
        if not isfinite(value):
            raise SpecError(f"{value} is not a finite number", span=span)
        return float(value)
    hint = None
    if isroutine(value):
        hint = (
            "nodes import a function from a file: write it to rows.py next to the"
            " program (in a notebook, with %%writefile), and name it:"
            " 'python:rows:FUNCTION' for a source, 'rows:FUNCTION' for an op"
        )
    raise SpecError(
        "a spec contains strings, numbers, lists and mappings, not"
        f" {_short_repr(value)}",
        span=span,
        hint=hint,
    )


def _short_repr(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 64 else f"{text[:61]}..."
