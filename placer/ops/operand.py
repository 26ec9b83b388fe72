"""Operands of ops, and checks of their number and dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from placer.errors import OpError
from placer.place.types import BATCH, TensorType

Types = Sequence[TensorType]

INTEGERS = frozenset(
    {"int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"}
)


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of an op.

    Attributes:
        variadic: the operand stands for one or more values, and is the last.
        parameter: the op creates the operand if it is used as a layer.
        dtype: the required dtypes; `number` is float or integer.
        same: the dtype, shape or type that must equal the first operand's.
    """

    name: str
    doc: str = ""
    optional: bool = False
    variadic: bool = False
    parameter: bool = False
    dtype: Literal["any", "float", "integer", "number"] = "any"
    same: Literal["dtype", "shape", "type"] | None = None


def check_operands(
    operands: Sequence[Operand], types: Types, uncounted: str = ""
) -> None:
    """Raise OpError if the operands are not as declared."""
    check_arity(operands, types, uncounted)
    more = len(types) - len(operands)
    each = [*operands[: len(types)], *tuple(operands[-1:]) * more]  # if variadic
    names = [f"{o.name}[{i}]" if o.variadic else o.name for i, o in enumerate(each)]
    for index, (operand, type_) in enumerate(zip(each, types, strict=True)):
        if operand.dtype == "float":
            require_float(names[index], types, index)
        elif operand.dtype == "integer" or (
            operand.dtype == "number" and not type_.is_float
        ):
            require_integer(names[index], types, index)
    for index, operand in enumerate(each):
        if operand.same in ("dtype", "type"):
            require_same_dtype(names, types, index)
    for index, operand in enumerate(each):
        if operand.same in ("shape", "type"):
            require_same_shape(names, types, index)


def check_layer(operands: Sequence[Operand], types: Types) -> None:
    """Raise OpError if the operands of a layer, without parameters, are invalid."""
    if all(operand.optional for operand in operands if operand.parameter):
        check_arity(operands, types)  # a layer may be used without written parameters
    given = [operand for operand in operands if not operand.parameter]
    check_operands(given, types, " besides its parameters")


def check_arity(operands: Sequence[Operand], types: Types, uncounted: str = "") -> None:
    """Raise OpError if `operands` does not allow this number of operands.

    `uncounted` names the operands that are not counted, for the message.
    """
    minimum = sum(not operand.optional for operand in operands)
    maximum = inf if operands and operands[-1].variadic else len(operands)
    if not minimum <= len(types) <= maximum:
        bounds = f"{minimum} to {maximum}" if minimum < maximum else f"{minimum}"
        if maximum == inf:
            bounds = f"at least {minimum}"
        names = ", ".join(operand.name for operand in operands)
        noun = "operand" if bounds.endswith("1") else "operands"
        raise OpError(f"needs {bounds} {noun} ({names}){uncounted}, {len(types)} given")


def check_operand(
    types: Types, index: int, name: str, valid: bool, needed: str
) -> None:
    """Raise OpError if an operand is not `valid`; `needed` says what is valid."""
    if not valid:
        raise operand_error(types, index, name, needed)


def operand_error(
    types: Types, index: int, name: str, needed: str, hint: str | None = None
) -> OpError:
    """Return the error of an operand that is not as `needed`."""
    message = f"needs {needed}, '{name}' is {types[index]}"
    return OpError(message, operand=index, hint=hint)


def require_float(name: str, types: Types, index: int) -> None:
    """Raise OpError if operand `index` does not have a float dtype."""
    if not types[index].is_float:
        message = f"needs a float operand as '{name}', not {types[index]}"
        error = OpError(message, operand=index)
        error.conversion = index, "float"
        raise error


def require_integer(name: str, types: Types, index: int) -> None:
    """Raise OpError if operand `index` does not have an integer dtype."""
    if types[index].dtype not in INTEGERS:
        message = f"needs an integer operand as '{name}', not {types[index]}"
        error = OpError(message, operand=index)
        # Labels have fewer dimensions than scores; otherwise operands may be swapped.
        others = [*types[:index], *types[index + 1 :]]
        if all(len(types[index].shape) < len(each.shape) for each in others):
            error.conversion = index, "int32"
        raise error


def require_same_dtype(
    names: Sequence[str], types: Types, index: int, first: int = 0
) -> None:
    """Raise OpError if operand `index` does not have the dtype of operand `first`."""
    if types[index].dtype != types[first].dtype:
        needed = f"operands of the same dtype, '{names[first]}' is {types[first]}"
        error = operand_error(types, index, names[index], needed)
        error.conversion = index, types[first].dtype
        if types[index].is_float and not types[first].is_float:
            error.conversion = first, types[index].dtype
        raise error


def require_same_shape(names: Sequence[str], types: Types, index: int) -> None:
    """Raise OpError if operand `index` does not have the shape of the first operand."""
    shapes = [types[0].shape, types[index].shape]
    if shapes[0] != shapes[1]:
        needed, hint = f"operands of the same shape, '{names[0]}' is {types[0]}", None
        if sorted(shapes, key=len) == [(BATCH,), (BATCH, 1)]:
            all_pairs = "[batch] and [batch, 1] would broadcast to all pairs of rows"
            hint = f"{all_pairs}; reshape one"
        raise operand_error(types, index, names[index], needed, hint)
