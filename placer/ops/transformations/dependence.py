"""Finds which elements of the parameters each value of an update depends on.

The analysis is strict: a value that it calls element by element is so in every case. A
primitive without a rule makes its results depend on all elements of its operands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import reduce
from heapq import heappop, heappush
from math import prod
from typing import Any

import numpy as np
from jax.extend import core

from placer.ops.transformations.equations import Equations
from placer.ops.transformations.trace import Traced


class Kind(IntEnum):
    """How the elements of a value depend on parameters, from less to more.

    Attributes:
        FILL: on no parameter, and all elements are equal.
        CONST: on no parameter.
        ELEMENT: element e on the elements e of one parameter with the value's shape, of
            its gradient and of its slots.
        MIXED: on any elements of parameters.
    """

    FILL = 0
    CONST = 1
    ELEMENT = 2
    MIXED = 3


@dataclass(frozen=True, slots=True)
class Value:
    """What a value depends on.

    Attributes:
        kind: how.
        sources: a set of bits: one per parameter, then one per leaf of the state.
        owner: the number of the parameter if the kind is ELEMENT, else -1.
    """

    kind: Kind
    sources: int = 0
    owner: int = -1


@dataclass(frozen=True, slots=True)
class Dependence:
    """What the results of an optimizer depend on.

    Attributes:
        values: for each parameter, its new value and its value for evaluations, if any.
        leaves: for each leaf of the state.
    """

    values: list[list[Value]]
    leaves: list[Value]


def find_dependence(traced: Traced) -> Dependence:
    """Return what new parameters, values for evaluations and the state depend on."""
    count = len(traced.names)
    parameters = [Value(Kind.ELEMENT, 1 << i, i) for i in range(count)]
    first = _results(traced.init, parameters)
    rate = Value(Kind.FILL)
    found, leaves = _find_fixed_point(traced, parameters, first, rate)
    values = [[each] for each in found]
    if traced.averaged is not None:
        read = [_read_leaf(leaf, count + i) for i, leaf in enumerate(leaves)]
        averaged = _results(traced.averaged, [*read, *parameters])
        for of_parameter, each in zip(values, averaged, strict=True):
            of_parameter.append(each)
    return Dependence(values, leaves)


def _read_leaf(leaf: Value, bit: int) -> Value:
    """Return the value of a leaf as an input, whose only source is the leaf itself."""
    return Value(leaf.kind, 1 << bit, leaf.owner)


def _find_fixed_point(
    traced: Traced, parameters: Sequence[Value], first: Sequence[Value], rate: Value
) -> tuple[list[Value], list[Value]]:
    """Return the new parameters and the leaves after any number of updates.

    A change of a leaf evaluates only the equations again that depend on it.
    """
    update, count, leaves = traced.update, len(parameters), list(first)
    inputs = traced.inputs_of(update)
    values: dict[Any, Value] = {}
    changed: list[Any] = []
    users: dict[Any, list[int]] = {}
    for position, eqn in enumerate(update.eqns):
        for atom in eqn.invars:
            if not isinstance(atom, core.Literal):
                users.setdefault(atom, []).append(position)
    stored: dict[Any, list[int]] = {}

    def put(var: Any, value: Value) -> None:
        if values.get(var) != value:
            values[var] = value
            changed.append(var)

    def store(leaf: int, value: Value) -> None:
        leaves[leaf] = _join(leaves[leaf], value)
        put(inputs.leaves[leaf], _read_leaf(leaves[leaf], count + leaf))

    for var in update.consts:
        put(var, _of_kind(Kind.CONST, var.aval.shape, 0))
    pairs = [*zip(inputs.gradients, parameters, strict=True)]
    pairs += [*zip(inputs.values, parameters, strict=True), (inputs.rate[0], rate)]
    for var, value in pairs:
        put(var, value)
    for leaf, atom in enumerate(update.results[count:]):
        put(inputs.leaves[leaf], _read_leaf(leaves[leaf], count + leaf))
        if isinstance(atom, core.Literal):
            store(leaf, _read(atom, values))
        else:
            stored.setdefault(atom, []).append(leaf)
    waiting = list(range(len(update.eqns)))
    queued = set(waiting)
    while changed or waiting:
        while changed:
            var = changed.pop()
            for position in users.get(var, ()):
                if position not in queued:
                    queued.add(position)
                    heappush(waiting, position)
            for leaf in stored.get(var, ()):
                store(leaf, values[var])
        if waiting:
            position = heappop(waiting)
            queued.remove(position)
            results = _results_of(update, position, values)
            for var, value in zip(update.eqns[position].outvars, results, strict=True):
                put(var, value)
    return [_read(atom, values) for atom in update.results[:count]], leaves


def _results(equations: Equations, inputs: Sequence[Value]) -> list[Value]:
    values: dict[Any, Value] = dict(zip(equations.inputs, inputs, strict=True))
    for var in equations.consts:
        values[var] = _of_kind(Kind.CONST, var.aval.shape, 0)
    for position, eqn in enumerate(equations.eqns):
        results = _results_of(equations, position, values)
        values.update(zip(eqn.outvars, results, strict=True))
    return [_read(atom, values) for atom in equations.results]


def _results_of(
    equations: Equations, position: int, values: Mapping[Any, Value]
) -> list[Value]:
    """Return the results of one equation."""
    eqn = equations.eqns[position]
    operands = [_read(atom, values) for atom in eqn.invars]
    branches = equations.branches.get(position)
    if branches is not None:
        return _cond(branches, operands)
    return [_result(eqn, operands, out.aval.shape) for out in eqn.outvars]


def _read(atom: Any, values: Mapping[Any, Value]) -> Value:
    if isinstance(atom, core.Literal):
        return _of_kind(Kind.CONST, np.shape(atom.val), 0)
    return values[atom]


def _of_kind(kind: Kind, shape: Sequence[int], sources: int) -> Value:
    if kind == Kind.CONST and prod(shape) == 1:
        kind = Kind.FILL  # one element
    return Value(kind, sources)


def _cond(branches: Sequence[Equations], operands: Sequence[Value]) -> list[Value]:
    choice, *inputs = operands
    each = [_results(branch, inputs) for branch in branches]
    joined = [reduce(_join, results) for results in zip(*each, strict=True)]
    if choice.kind == Kind.FILL:
        return [
            Value(value.kind, value.sources | choice.sources, value.owner)
            for value in joined
        ]
    return [Value(Kind.MIXED, value.sources | choice.sources) for value in joined]


def _join(one: Value, other: Value) -> Value:
    """Return a value that depends on what either value depends on."""
    sources = one.sources | other.sources
    kind = max(one.kind, other.kind)
    if kind == Kind.ELEMENT:
        low, high = sorted((one, other), key=lambda value: value.kind)
        is_same = low.kind == Kind.FILL or low.owner == high.owner
        return (
            Value(kind, sources, high.owner) if is_same else Value(Kind.MIXED, sources)
        )
    return Value(kind, sources)


def _result(eqn: Any, operands: Sequence[Value], shape: Sequence[int]) -> Value:
    sources = reduce(int.__or__, (value.sources for value in operands), 0)
    kind = max((value.kind for value in operands), default=Kind.CONST)
    if kind <= Kind.CONST:
        is_fill = bool(operands) and kind == Kind.FILL and _keeps_fill(eqn)
        return (
            Value(Kind.FILL, sources)
            if is_fill
            else _of_kind(Kind.CONST, shape, sources)
        )
    if kind == Kind.ELEMENT and is_elementwise(eqn):
        owners = set()
        for atom, value in zip(eqn.invars, operands, strict=True):
            if value.kind == Kind.ELEMENT and atom.aval.shape == shape:
                owners.add(value.owner)
            elif value.kind != Kind.FILL:
                return Value(Kind.MIXED, sources)
        if len(owners) == 1:
            return Value(Kind.ELEMENT, sources, owners.pop())
    return Value(Kind.MIXED, sources)


def is_elementwise(eqn: Any) -> bool:
    """Return True if element e of each result depends only on the elements e of operands.

    An operand without axes counts as an array with equal elements.
    """
    name, params = eqn.primitive.name, eqn.params
    if name in _ELEMENTWISE:
        return all(
            atom.aval.shape in ((), eqn.outvars[0].aval.shape) for atom in eqn.invars
        )
    shapes = {atom.aval.shape for atom in (*eqn.invars, *eqn.outvars)}
    if len(eqn.invars) != 1 or len(shapes) != 1:
        return False
    rank = len(eqn.invars[0].aval.shape)
    if name == "broadcast_in_dim":
        return tuple(params["broadcast_dimensions"]) == tuple(range(rank))
    return name == "squeeze" or (name == "reshape" and params["dimensions"] is None)


def _keeps_fill(eqn: Any) -> bool:
    return is_elementwise(eqn) or eqn.primitive.name in _RESHAPES


_RESHAPES = {"broadcast_in_dim", "reshape", "squeeze", "transpose", "slice"}
"""Primitives that only move or repeat elements of their first operand."""

# fmt: off
_ELEMENTWISE = frozenset({
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan",
    "atan2", "atanh", "cbrt", "ceil", "clamp", "convert_element_type", "copy",
    "copy_p", "cos", "cosh", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2",
    "expm1", "floor", "ge", "gt", "integer_pow", "is_finite", "le", "log", "log1p",
    "logistic", "lt", "max", "min", "mul", "ne", "neg", "nextafter", "not", "or",
    "pow", "reduce_precision", "rem", "round", "rsqrt", "select_n", "shift_left",
    "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sinh", "sqrt",
    "square", "sub", "tan", "tanh", "xor",
})
# fmt: on
