"""Plain Python values as nodes of a spec's tree, all at the line that says them."""

from __future__ import annotations

from collections.abc import Mapping as Entries
from math import isfinite
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from placer.errors import Span, SpecError
from placer.front.variable import Variable
from placer.place import Place
from placer.spec.tree import Line, Mapping, Node, Scalar, Sequence
from placer.spec.yaml_events import MAX_DEPTH

if TYPE_CHECKING:
    from placer.front.program import Program


def scalar(value: str | float | None, span: Span) -> Scalar:
    """A text, number, bool or None that is known to be good."""
    text = value if isinstance(value, str) else repr(value)
    return Scalar(Line(span), text, value, plain=True)


def mapping(entries: Entries[str, Node], span: Span) -> Mapping:
    """A mapping of nodes."""
    made = Mapping(Line(span), flow=True)
    for key, node in entries.items():
        made.keys[key] = scalar(key, span)
        made.entries[key] = node
    return made


def sequence(items: list[Node], span: Span) -> Sequence:
    """A list of nodes."""
    made = Sequence(Line(span), flow=True)
    made.items = items
    return made


def node(value: object, span: Span, program: Program, depth: int = 0) -> Node:
    """A value as a node; a Variable is its name, a Place its text, a node itself.

    Numbers of other libraries are taken as Python's. Raises SpecError at `span` for
    what a spec cannot hold.
    """
    if depth == MAX_DEPTH:
        raise SpecError(f"nested deeper than {MAX_DEPTH} levels", span=span)
    if isinstance(value, Mapping | Sequence | Scalar):
        return value
    if isinstance(value, Variable):
        if value.program is not program:
            raise SpecError(
                f"'{value.name}' is a value of another program",
                span=span,
                hint="write `with program:` around the ops of one program",
            )
        return scalar(value.name, span)
    if isinstance(value, Entries):
        made: dict[str, Node] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                message = f"a key must be a text, not {_shown(key)}"
                raise SpecError(message, span=span)
            made[key] = node(item, span, program, depth + 1)
        return mapping(made, span)
    if isinstance(value, list | tuple):
        items = [node(item, span, program, depth + 1) for item in value]
        return sequence(items, span)
    return scalar(_plain(value, span), span)


def _plain(value: object, span: Span) -> str | float | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Place):
        return str(value)
    if isinstance(value, str):
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise SpecError(f"{value!r} is no text that a file can hold", span=span)
        return str(value)
    if isinstance(value, Integral):
        if not -(2**63) <= int(value) < 2**64:
            raise SpecError(f"{_shown(value)} does not fit in 64 bits", span=span)
        return int(value)
    if isinstance(value, Real):
        if not isfinite(value):
            raise SpecError(f"{value} is not a finite number", span=span)
        return float(value)
    raise SpecError(
        f"a spec holds texts, numbers, lists and mappings, not {_shown(value)}",
        span=span,
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 64 else f"{text[:61]}..."
