"""Looks up the declared attributes of an op, and the arguments of declaration rules."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from placer import ops
from placer.compiler.graph.attributes import ANY, CONVERSION, GRADIENT, SUM, Attributes
from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.structural_ops import COMPUTED, KINDS, is_conversion
from placer.errors import OpError, did_you_mean
from placer.ops.attributes import check_value, complete
from placer.ops.declaration import Attr, Declaration
from placer.ops.registry import DECLARATIONS
from placer.place.types import TensorType


def is_declared(kind: str) -> bool:
    """Return True if an op kind exists."""
    forward = kind.removesuffix(".grad")
    return kind in KINDS or is_conversion(kind) or forward in DECLARATIONS


def attribute(kind: str, name: str) -> Attr:
    """Return the declaration of an attribute of an op kind. Raises OpError if the kind
    or the attribute is unknown."""
    attributes = _attributes(kind)
    if name in attributes:
        return attributes[name]
    hint = did_you_mean(name, [*attributes])
    raise OpError(f"has no attribute '{name}'", attr=name, hint=hint).of(kind)


def check_attributes(op: Op) -> None:
    """Raise OpError if an attribute is undeclared, missing, or of the wrong type."""
    for name, value in op.attrs.items():
        check_value(op.kind, attribute(op.kind, name), value)
    for attr in _required(op.kind):
        if attr.name not in op.attrs:
            message = f"needs the attribute '{attr.name}': {attr.doc}"
            raise OpError(message, attr=attr.name).of(op.kind)


@cache
def _attributes(kind: str) -> Attributes:
    # The first attribute of each name counts.
    parts = [ANY, KINDS.get(kind, COMPUTED).attrs]
    if kind not in KINDS:
        parts.append(_declared_in_ops(kind))
        if kind.endswith(".grad"):
            parts.append(GRADIENT)
        elif kind == "accumulate":
            parts.append(SUM)
        elif is_conversion(kind):
            parts.append(CONVERSION)
    return {name: attr for part in reversed(parts) for name, attr in part.items()}


@cache
def _required(kind: str) -> tuple[Attr, ...]:
    return tuple(attr for attr in _attributes(kind).values() if attr.required)


@cache
def _declared_in_ops(kind: str) -> Attributes:
    """Return the attributes that `placer.ops` declares for a computed op. A gradient op
    has the attributes of its forward op."""
    if is_conversion(kind):
        return {}
    attrs = ops.find(kind.removesuffix(".grad")).attrs
    return {attr.name: attr for attr in attrs if not attr.for_parameters}


def declared_attrs(op: Op) -> dict[str, Any]:
    """Return the attributes that `placer.ops` declares for a computed op."""
    names = _declared_in_ops(op.kind)
    return {name: value for name, value in op.attrs.items() if name in names}


def passed_attrs(op: Op) -> Mapping[str, Any]:
    """Return the attributes that programs pass to an op's function or node method."""
    declared_ones = _declared_in_ops(op.kind) if op.is_computed else op.structure.attrs
    return {
        name: value
        for name, value in op.attrs.items()
        if name in declared_ones and not declared_ones[name].compiler_only
    }


def declared(
    graph: Graph, op: Op
) -> tuple[Declaration, list[TensorType], dict[str, Any]]:
    """Return the declaration of a forward op, its operand types, and its attributes.
    Attributes include default values."""
    declaration = ops.find(op.kind)
    attrs = complete(declaration, declared_attrs(op))
    return declaration, graph.operand_types(op), attrs


def works_by_rows(graph: Graph, op: Op) -> bool:
    """Return True if row i of the results depends only on row i of the operands."""
    if not op.is_computed:
        return False
    declaration, types, attrs = declared(graph, op)
    has_rows = any(each.has_rows for each in types)
    return has_rows and declaration.batch_rule(types, attrs) == "rows"


def calls_user_code(op: Op) -> bool:
    """Return True if the op calls a function in a module of the spec."""
    # An op of the compiler may lack a declaration.
    declaration = DECLARATIONS.get(op.kind)
    return declaration is not None and declaration.calls_user_code
