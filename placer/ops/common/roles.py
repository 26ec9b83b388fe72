"""Names operands by their role, for layers with an optional operand in the middle."""

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
    """Raise OpError unless the present operands have these shapes and one dtype."""
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
    """Return a parameter for each shape, initialized to zeros by default."""
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
    """Return the names of a layer's operands, in order.

    Args:
        needed: what the layer needs, for the error message.
        leading: the names of the first operands.
        numbers: how many of the leading operands may be present.
        last: the name of the optional operand before the parameters; it is not float.
        types: the types of all operands.
        weights: the names of the parameters without a bias.
        biased: the names of the parameters if the last one is a bias (rank 1).

    Raises:
        OpError: if the number of leading operands is not in `numbers`.
    """
    parameters = biased if types and types[-1].rank == 1 else weights
    others = types[: max(len(types) - len(parameters), 0)]
    has_last = len(others) > 1 and not others[-1].is_float
    number = len(others) - has_last
    if number not in numbers:
        raise OpError(f"{needed}; got {', '.join(map(str, others)) or 'none'}")
    return (*leading[:number], *((last,) if has_last else ()), *parameters)
