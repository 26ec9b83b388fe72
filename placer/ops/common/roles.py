"""Operands by name, for ops with optional operands that precede others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from placer.errors import OpError
from placer.ops.declaration import LayerParameter
from placer.ops.operand import Types, operand_error
from placer.place.types import Dim, TensorType
from placer.plan.settings.training.initializers import Init


def require_shapes(
    names: Sequence[str], types: Types, shapes: Mapping[str, Sequence[Dim]]
) -> None:
    """Raise OpError if an operand named in `shapes` has another dtype or shape.

    The dtype must be that of the first operand. Names of absent operands are ignored.
    """
    for index, (name, type_) in enumerate(zip(names, types, strict=True)):
        if name not in shapes:
            continue
        expected = TensorType(types[0].dtype, tuple(shapes[name]))
        if type_ != expected:
            needed = f"'{name}' {expected} for '{names[0]}' {types[0]}"
            raise operand_error(types, index, name, needed)


def make_parameters(
    dtype: str, shapes: Mapping[str, Sequence[Dim]], initializers: Mapping[str, Init]
) -> tuple[LayerParameter, ...]:
    """Return a parameter for each shape; those without an initializer are zeros."""
    return tuple(
        LayerParameter(
            name, TensorType(dtype, tuple(shape)), initializers.get(name, "zeros")
        )
        for name, shape in shapes.items()
    )


def name_operands(
    needed: str,
    leading: Sequence[str],
    numbers: Collection[int],
    last: str,
    types: Types,
    weights: tuple[str, ...] = (),
    biased: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """Return the names of a layer's operands: the first of `leading`, `last`, weights.

    The weights are `biased` if the last operand has rank 1. Of the operands before
    them, one that is not float is `last`. Raises OpError, which says what is `needed`,
    unless the number of the others is one of `numbers`.
    """
    parameters = biased if types and types[-1].rank == 1 else weights
    others = types[: max(len(types) - len(parameters), 0)]
    has_last = len(others) > 1 and not others[-1].is_float
    number = len(others) - has_last
    if number not in numbers:
        raise OpError(f"{needed}; got {', '.join(map(str, others)) or 'none'}")
    return (*leading[:number], *((last,) if has_last else ()), *parameters)
