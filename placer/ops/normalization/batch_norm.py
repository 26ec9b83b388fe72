"""What batch_norm is put together from."""

from __future__ import annotations

from collections.abc import Sequence

from placer.errors import OpError
from placer.ops.common.checks import (
    arity,
    each_row,
    need_float,
    need_same_dtype,
)
from placer.ops.declaration import Attr, Attrs, Case, Declaration, Operand, Types
from placer.types import BATCH, TensorType

_EPSILON = Attr("epsilon", float, "added to the variance", required=True)


def _check(kind: str, operands: tuple[Operand, ...], types: Types) -> TensorType:
    """The type of a channel's values; OpError unless the operands are those."""
    arity(kind, operands, types)
    names = [operand.name for operand in operands]
    need_float(kind, names[0], types, 0)
    need_same_dtype(kind, names, types)
    x = types[0]
    if x.rank < 2 or x.shape[-1] == BATCH:
        raise OpError(f"{kind} needs [batch, …, channels], 'x' is {x}", operand=0)
    each = TensorType(x.dtype, x.shape[-1:])
    for index, given in enumerate(types[1:], 1):
        if given != each:
            raise OpError(
                f"{kind} needs '{names[index]}' {each} for 'x' {x}, it is {given}",
                operand=index,
            )
    return each


_VARIANCE = (
    Operand("x", "float, [batch, …, channels]"),
    Operand("mean", "[channels], of the global batch"),
)


def _infer_variance(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    return (_check("variance", _VARIANCE, types),)


VARIANCE = Declaration(
    "variance",
    "The mean square distance from the mean, over all dimensions but the last; over the"
    " batch it divides by the rows of the global batch.",
    _VARIANCE,
    _infer_variance,
    lambda types, attrs: "reduce",
    lambda types, attrs: 3 * types[0].numel(),
    lambda types, attrs, wrt: 3 * types[0].numel() * len(wrt),
    saves=lambda types, attrs: (0, 1),
    counts=lambda types, attrs: types[0].has_rows,
    constant=(1,),
    inserted=True,
    formula="out = Σ (x - mean)² / n; dx = 2 · dy · (x - mean) / n; the mean has no"
    " gradient, since Σ (x - mean) = 0",
    cases=(Case(("float32[batch, 64]", "float32[64]")),),
    example="%bn.variance = variance(%x, %bn.mean)",
)

_NORMALIZE = (
    Operand("x", "float, [batch, …, channels]"),
    Operand("mean", "[channels]"),
    Operand("variance", "[channels]"),
    Operand("scale", "[channels]"),
    Operand("bias", "[channels]"),
)


def _infer_normalize(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    _check("normalize", _NORMALIZE, types)
    return (types[0],)


def _normalize_grad(types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
    each = {0: 2, 1: 2, 2: 4, 3: 4, 4: 1}
    return sum(each[index] for index in wrt) * types[0].numel()


NORMALIZE = Declaration(
    "normalize",
    "Each channel shifted and scaled by a mean and a variance, then by parameters.",
    _NORMALIZE,
    _infer_normalize,
    each_row,
    lambda types, attrs: 4 * types[0].numel(),
    _normalize_grad,
    attrs=(_EPSILON,),
    saves=lambda types, attrs: (0, 1, 2, 3),
    inserted=True,
    formula="out = scale · (x - mean) / √(variance + epsilon) + bias",
    cases=(Case(("float32[batch, 64]", *["float32[64]"] * 4), {"epsilon": 1e-5}),),
    example="%bn = normalize(%x, %m, %v, %bn.scale, %bn.bias) {epsilon = 1e-05}",
)

_REPLICA = (_NORMALIZE[0], *_NORMALIZE[3:])


def _infer_replica(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    each = _check("replica_norm", _REPLICA, types)
    return (types[0], each, each)


REPLICA_NORM = Declaration(
    "replica_norm",
    "Each channel normalised by the statistics of the rows that are here, then scaled"
    " and shifted; and this place's part of the mean and of the variance of the batch,"
    " the variances about each place's own mean. The statistics have no gradient.",
    _REPLICA,
    _infer_replica,
    each_row,
    lambda types, attrs: 8 * types[0].numel(),
    lambda types, attrs, wrt: (8 if 0 in wrt else 4) * types[0].numel() * bool(wrt),
    attrs=(_EPSILON,),
    results=("out", "mean", "variance"),
    saves=lambda types, attrs: (0, 1),
    residuals=lambda types, attrs: (
        TensorType(types[0].dtype, types[0].shape[-1:]),
        TensorType(types[0].dtype, types[0].shape[-1:]),
    ),
    counts=lambda types, attrs: types[0].has_rows,
    inserted=True,
    formula="out = scale · (x - mean) / √(variance + epsilon) + bias",
    cases=(
        Case(("float32[batch, 64]", "float32[64]", "float32[64]"), {"epsilon": 1e-5}),
    ),
    example="%y, %m, %v = replica_norm(%x, %bn.scale, %bn.bias) {epsilon = 1e-05}",
)

_AVERAGE = (
    Operand("old", "float, any shape"),
    Operand("new", "the same type"),
)


def _infer_average(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    arity("moving_average", _AVERAGE, types)
    need_float("moving_average", "old", types, 0)
    if types[1] != types[0]:
        raise OpError(
            f"moving_average needs operands of one type, 'old' is {types[0]}, 'new' is"
            f" {types[1]}",
            operand=1,
        )
    return (types[0],)


MOVING_AVERAGE = Declaration(
    "moving_average",
    "What stays of an old value, and the rest of a new one.",
    _AVERAGE,
    _infer_average,
    each_row,
    lambda types, attrs: 3 * types[0].numel(),
    lambda types, attrs, wrt: 0,
    attrs=(Attr("momentum", float, "the share of the old value", required=True),),
    differentiable=False,
    inserted=True,
    formula="out = momentum · old + (1 - momentum) · new",
    cases=(Case(("float32[64]", "float32[64]"), {"momentum": 0.99}),),
    example="%m.new = moving_average(%m, %bn.mean) {momentum = 0.99}",
)

DECLARATIONS = (VARIANCE, NORMALIZE, REPLICA_NORM, MOVING_AVERAGE)
