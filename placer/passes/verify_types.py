"""The verifier of names and types: a result is what its op's declaration gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from placer import ops
from placer.analysis.layout_rules import Ways
from placer.errors import GraphError, OpError
from placer.graph.graph import Graph, Op
from placer.graph.kinds import (
    COPIES,
    ENTRIES,
    MESSAGES,
    OVER,
    RECIPES,
    declared_attrs,
    is_conversion,
    is_direction,
    is_update,
)
from placer.ops import attributes
from placer.ops.attributes import complete
from placer.types import ResidualType, TensorType, ValueType


@dataclass(slots=True)
class Known:
    """What has been found right, so that each combination is worked out once.

    A type has a number; types that are equal have the same. `right` holds the kinds,
    attributes and types of ops that fit; `objects` finds a type's number by identity,
    which is quicker, and holds the type so that it stays the same object.

    Attributes have numbers, too: `texts` by what types depend on, `attrs` by identity.
    `ways` are the layouts that ops take and give. `graph` is the last that was verified,
    and `stage` what it holds.
    """

    numbers: dict[ValueType, int] = field(default_factory=dict)
    objects: dict[int, tuple[int, ValueType]] = field(default_factory=dict)
    right: set[tuple[object, ...]] = field(default_factory=set)
    attrs: dict[int, tuple[int, Mapping[str, Any]]] = field(default_factory=dict)
    texts: dict[object, int] = field(default_factory=dict)
    ways: dict[tuple[object, ...], Ways] = field(default_factory=dict)
    graph: Graph | None = None
    stage: int = -1

    def written(self, attrs: Mapping[str, Any]) -> int:
        found = self.attrs.get(id(attrs))
        if found is None:
            number = self.texts.setdefault(_written(attrs), len(self.texts))
            found = self.attrs[id(attrs)] = number, attrs
        return found[0]

    def number(self, kind: ValueType) -> int:
        found = self.objects.get(id(kind))
        if found is None:
            number = self.numbers.setdefault(kind, len(self.numbers))
            found = self.objects[id(kind)] = number, kind
        return found[0]


def check_types(graph: Graph, known: Known) -> None:
    """Raise GraphError when a name is defined twice or after its use, or when a result
    has not the type that its op gives."""
    defined: dict[str, int] = {}
    forward: dict[str, tuple[int, ...]] = {}
    number, right, written = known.number, known.right, known.written
    for op in graph.ops:
        try:
            takes = [defined[name] for name in op.operands]
        except KeyError as error:
            raise broken(op, f"{error} is used before it is defined") from None
        results = op.results
        gives = [number(value.type) for value in results]
        for value, found in zip(results, gives, strict=True):
            if value.name in defined:
                raise broken(op, f"'{value.name}' is defined twice")
            defined[value.name] = found
        kind = op.kind
        if kind in _FREE:
            continue
        key = (kind, written(op.attrs), *takes, -1, *gives)
        if len(gives) > 1 and isinstance(results[-1].type, ResidualType):
            forward[results[-1].name] = (*takes, *gives)
        elif takes and op.is_gradient:
            key = (*key, *forward.get(op.operands[0], ()))
        if key not in right:
            _check(graph, op)
            right.add(key)


_FREE = ENTRIES | RECIPES | MESSAGES | {"record"}
"""Kinds whose types follow from no declaration."""


def _check(graph: Graph, op: Op) -> None:
    expected = _expected(graph, op, [graph.values[name].type for name in op.operands])
    if len(expected) != len(op.results):
        raise broken(op, f"{op.kind} gives {len(expected)} results")
    for value, wanted in zip(op.results, expected, strict=True):
        if value.type != wanted:
            raise broken(
                op, f"'{value.name}' is {value.type}, and {op.kind} gives {wanted}"
            )


def broken(op: Op, message: str) -> GraphError:
    """The error about an op, with the op's text."""
    from placer.graph.text import print_op

    return GraphError(f"{message}:\n    {print_op(op)}", span=op.source)


def _written(attrs: Mapping[str, Any]) -> object:
    """The attributes that types may depend on, as a key."""
    if not attrs or (len(attrs) == 1 and "segment" in attrs):
        return ()
    return tuple(
        [(k, v if v.__hash__ else repr(v)) for k, v in attrs.items() if k != "segment"]
    )


def _expected(graph: Graph, op: Op, takes: list[ValueType]) -> list[ValueType]:
    """The types of the op's results; GraphError when its operands do not fit."""
    kind = op.kind
    if op.is_gradient:
        return _gradient(graph, op, takes)
    tensors = [_tensor(op, i, each) for i, each in enumerate(takes)]
    if kind == "store":
        _alike(op, tensors, 2, 2)
        return []
    if kind == "cut":
        return [_cut(op, tensors)]
    if kind == "assemble":
        return [_assemble(op, tensors)]
    if kind in COPIES or kind in OVER:
        return list(takes)
    if is_conversion(kind):
        _alike(op, tensors, 1, 1)
        return [tensors[0]]
    if is_update(kind) or is_direction(kind):
        _alike(op, tensors[:2], 2, 2)
        return [tensors[0]]
    return _declared(op, tensors)


def _tensor(op: Op, index: int, kind: ValueType) -> TensorType:
    if isinstance(kind, ResidualType):
        raise broken(op, f"'{op.operands[index]}' is a residual, not a tensor")
    return kind


def _alike(op: Op, tensors: list[TensorType], least: int, most: int) -> None:
    if not least <= len(tensors) <= most:
        raise broken(op, f"{op.kind} takes {least} operands, not {len(tensors)}")
    for name, kind in zip(op.operands, tensors, strict=False):
        if kind != tensors[0]:
            raise broken(
                op, f"'{op.operands[0]}' is {tensors[0]} and '{name}' is {kind}"
            )


def _cut(op: Op, tensors: list[TensorType]) -> TensorType:
    _alike(op, tensors, 1, 1)
    start, stop = op.attrs["start"], op.attrs["stop"]
    if not 0 <= start < stop <= tensors[0].numel():
        raise broken(op, f"{tensors[0]} has no elements {start} to {stop}")
    return TensorType(tensors[0].dtype, (stop - start,))


def _assemble(op: Op, tensors: list[TensorType]) -> TensorType:
    whole = op.result.type
    assert isinstance(whole, TensorType)
    held = sum(kind.numel() for kind in tensors)
    if held != whole.numel() or any(kind.dtype != whole.dtype for kind in tensors):
        raise broken(op, f"its blocks hold {held} elements, and {whole} has others")
    return whole


def _declared(op: Op, tensors: list[TensorType]) -> list[ValueType]:
    try:
        declaration = ops.find(op.kind)
        attrs = complete(declaration, declared_attrs(op.attrs))
        attributes.check_types(declaration, attrs)
        expected: list[ValueType] = [*declaration.infer(tensors, attrs)]
        if len(op.results) == len(expected) + 1:
            expected.append(ResidualType(tuple(declaration.residuals(tensors, attrs))))
    except OpError as error:
        raise broken(op, error.message) from error
    return expected


def _gradient(graph: Graph, op: Op, takes: list[ValueType]) -> list[ValueType]:
    """A gradient op takes a residual, the saved operands, and a cotangent of the type
    of each result; what it gives has the types of the operands it is of."""
    if not takes or not isinstance(takes[0], ResidualType):
        raise broken(op, f"{op.kind} takes a residual first")
    forward = graph.producers[op.operands[0]]
    if forward.kind != op.forward_kind:
        raise broken(op, f"'{op.operands[0]}' is a residual of {forward.kind}")
    declaration = ops.find(forward.kind)
    of_forward = [graph.tensor(name) for name in forward.operands]
    attrs = complete(declaration, declared_attrs(forward.attrs))
    saved = declaration.saves(of_forward, attrs)
    wanted = [of_forward[i] for i in saved]
    tensors = [v.type for v in forward.results if isinstance(v.type, TensorType)]
    of_loss = op.attrs.get("cotangents", range(len(tensors)))
    wanted += [tensors[i] for i in of_loss]
    if len(takes) != len(wanted) + 1:
        raise broken(op, f"{op.kind} takes {len(wanted) + 1} operands here")
    for name, have, need in zip(op.operands[1:], takes[1:], wanted, strict=True):
        if have != need:
            raise broken(op, f"'{name}' is {have}, and {op.kind} takes {need} there")
    return [of_forward[i] for i in op.attrs.get("wrt", ())]
