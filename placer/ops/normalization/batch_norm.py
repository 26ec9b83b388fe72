"""The ops that batch_norm expands to."""

from __future__ import annotations

from functools import partial

from placer.errors import OpError
from placer.ops.common.checks import infer_one_type
from placer.ops.common.costs import flops_per_element, grad_flops_per_element
from placer.ops.declaration import Attrs, Declaration, case, required
from placer.ops.operand import Operand, Types
from placer.place.types import BATCH, TensorType

_EPSILON = required("epsilon", float, "added to the variance")


def _check(operands: tuple[Operand, ...], types: Types) -> TensorType:
    """Return the type of one value per channel, which later operands must have."""
    x = types[0]
    if x.rank < 2 or x.shape[-1] == BATCH:
        raise OpError(f"needs [batch, …, channels], 'x' is {x}", operand=0)
    channel = TensorType(x.dtype, x.shape[-1:])
    for index, type_ in enumerate(types[1:], 1):
        if type_ != channel:
            name = operands[index].name
            raise OpError(
                f"needs '{name}' {channel} for 'x' {x}, not {type_}", operand=index
            )
    return channel


_X = Operand("x", "float, [batch, …, channels]", dtype="float")
_VARIANCE = (_X, Operand("mean", "[channels], of the global batch", same="dtype"))


VARIANCE = Declaration(
    "variance",
    "The variance over all dimensions but the last: the mean squared distance"
    " from the mean. Over the batch, it divides by the rows of the global batch.",
    _VARIANCE,
    lambda types, attrs: (_check(_VARIANCE, types),),
    lambda types, attrs: "reduce",
    flops_per_element(3),
    grad_flops_per_element(3, 3),
    saves=lambda types, attrs: (0, 1),
    takes_count=lambda types, attrs: types[0].has_rows,
    constant_operands=lambda types, attrs: (1,),
    inserted=True,
    formula="out = Σ (x - mean)² / n; dx = 2 · dy · (x - mean) / n; dmean = 0, since"
    " Σ (x - mean) = 0",
    cases=(case("float32[batch, 64], float32[64]"),),
)

_CHANNEL = ("mean", "variance", "scale", "bias")
_NORMALIZE = (_X, *(Operand(name, "[channels]", same="dtype") for name in _CHANNEL))


def _infer_normalize(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    _check(_NORMALIZE, types)
    return (types[0],)


NORMALIZE = Declaration(
    "normalize",
    "Normalizes each channel by a mean and a variance, then scales and shifts it.",
    _NORMALIZE,
    _infer_normalize,
    flops=flops_per_element(4),
    grad_flops=grad_flops_per_element(2, 2, 4, 4, 1),
    attrs=(_EPSILON,),
    saves=lambda types, attrs: (0, 1, 2, 3),
    inserted=True,
    formula="out = scale · (x - mean) / √(variance + epsilon) + bias",
    cases=(case("float32[batch, 64]" + ", float32[64]" * 4, epsilon=1e-5),),
)

_REPLICA = (_NORMALIZE[0], *_NORMALIZE[3:])


def _infer_replica(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    channel = _check(_REPLICA, types)
    return (types[0], channel, channel)


REPLICA_NORM = Declaration(
    "replica_norm",
    "Normalizes each channel by the statistics of the local rows, then scales and"
    " shifts it. Also returns this node's parts of `mean` and `variance`. The"
    " parts of all nodes add up to the average statistics, weighted by rows."
    " `mean` and `variance` have no gradient.",
    _REPLICA,
    _infer_replica,
    flops=flops_per_element(8),
    grad_flops=lambda types, attrs, wrt: (
        (8 if 0 in wrt else 4) * types[0].numel() * bool(wrt)
    ),
    attrs=(_EPSILON,),
    results=("out", "mean", "variance"),
    saves=lambda types, attrs: (0, 1),
    residuals=lambda types, attrs: (types[1], types[1]),
    takes_count=lambda types, attrs: types[0].has_rows,
    inserted=True,
    formula="out = scale · (x - mean) / √(variance + epsilon) + bias",
    cases=(case("float32[batch, 64], float32[64], float32[64]", epsilon=1e-5),),
)

MOVING_AVERAGE = Declaration(
    "moving_average",
    "The exponential moving average: a weighted mean of an old and a new value.",
    (
        Operand("old", "float, any shape", dtype="float"),
        Operand("new", "the same type"),
    ),
    partial(infer_one_type, ("old", "new")),
    flops=flops_per_element(3),
    attrs=(required("momentum", float, "the weight of the old value"),),
    differentiable=False,
    inserted=True,
    formula="out = momentum · old + (1 - momentum) · new",
    cases=(case("float32[64], float32[64]", momentum=0.99),),
)
