"""pad: adds elements before and after an array along its dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from placer.errors import OpError
from placer.ops.common.checks import is_in_range
from placer.ops.declaration import Attr, Attrs, Declaration, case, choice, required
from placer.ops.operand import Operand, Types, check_operand
from placer.place.types import BATCH, Dim, TensorType


def _padded_size(x: TensorType, axis: int, pair: Sequence[int], mode: str) -> Dim:
    """Return the padded size of a dimension; raise OpError for invalid padding."""
    dim, most = x.shape[axis], max(pair)
    if min(pair) < 0:
        raise OpError(
            f"cannot add {min(pair)} elements",
            attr="paddings",
            hint="use slice to remove elements",
        )
    if dim == BATCH:
        if most:
            message = f"cannot add rows to the batch, axis {axis} of 'x' {x}"
            raise OpError(message, attr="paddings")
        return dim
    if mode == "reflect" and most >= max(1, int(dim)):
        where = f"axis {axis} of 'x' {x}"
        message = f"can reflect {int(dim) - 1} elements of {where}, not {most}"
        raise OpError(message, attr="paddings")
    if mode == "edge" and most and dim == 0:
        raise OpError(f"has no edge on axis {axis} of 'x' {x}", attr="paddings")
    return int(dim) + sum(pair)


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    (x,), paddings = types, attrs["paddings"]
    check_operand(types, 0, "x", x.rank > 0, "a dimension")
    if len(paddings) != x.rank or any(len(pair) != 2 for pair in paddings):
        raise OpError(
            f"needs [before, after] for each dimension of 'x' {x}",
            attr="paddings",
            hint="write [0, 0] for a dimension without padding",
        )
    if attrs["value"] and attrs["mode"] != "constant":
        raise OpError(
            f"has mode {attrs['mode']}, so 'value' has no effect",
            attr="value",
            hint="leave value out, or write mode: constant",
        )
    if not any(map(any, paddings)) and (attrs["value"] or attrs["mode"] != "constant"):
        name = "value" if attrs["value"] else "mode"
        raise OpError(
            f"adds no elements, so '{name}' has no effect",
            attr=name,
            hint=f"leave {name} out, or write paddings above 0",
        )
    if not is_in_range(x.dtype, attrs["value"]):
        raise OpError(f"cannot insert {attrs['value']} in 'x' {x}", attr="value")
    shape = [
        _padded_size(x, axis, pair, attrs["mode"]) for axis, pair in enumerate(paddings)
    ]
    return (TensorType(x.dtype, tuple(shape)),)


def _grad_flops(types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
    """Count one addition for each element copied from x to the padding."""
    if attrs["mode"] == "constant":
        return 0
    (out,) = _infer(types, attrs)
    return (out.numel() - types[0].numel()) * len(wrt)


PAD = Declaration(
    "pad",
    "Adds elements before and after x along its dimensions, except the batch."
    " `mode` chooses them: a constant (`constant`), copies of the outermost"
    " element (`edge`), or a reflection without the outermost element"
    " (`reflect`).",
    (Operand("x", "any dtype, at least one dimension"),),
    _infer,
    grad_flops=_grad_flops,
    attrs=(
        required(
            "paddings",
            list[list[int]],
            "[before, after] for each dimension, [0, 0] for the batch",
        ),
        Attr("value", float, "the number to insert, for mode constant", default=0.0),
        choice("mode", "which elements to insert", ("constant", "edge", "reflect")),
    ),
    linear=lambda types, attrs: (
        () if attrs["mode"] == "constant" and attrs["value"] else ((0,),)
    ),
    formula="out = value, …, x, …, value",
    source="numpy.pad, three of its modes",
    cases=(
        case("float32[batch, 28, 28]", paddings=[[0, 0], [2, 2], [2, 2]]),
        case("float32[batch, 20, 8]", paddings=[[0, 0], [1, 0], [0, 0]], value=-1.0),
        case("float32[batch, 28]", paddings=[[0, 0], [3, 3]], mode="reflect"),
    ),
)
