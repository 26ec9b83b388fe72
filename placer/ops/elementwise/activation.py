"""The nonlinearities, alone and inside fc."""

from __future__ import annotations

from collections.abc import Callable

from placer.errors import OpError
from placer.ops.common.checks import arity, each_row, need_float, normal_axis
from placer.ops.declaration import (
    Attr,
    Attrs,
    Case,
    Declaration,
    Operand,
    Rule,
    Types,
)
from placer.types import TensorType

ACTIVATIONS = (
    "none",
    "relu",
    "leaky_relu",
    "elu",
    "gelu",
    "silu",
    "softplus",
    "tanh",
    "sigmoid",
    "softmax",
    "log_softmax",
)
"""What fc may apply to its result, with the default of every attribute."""

FORWARD_FLOPS = {
    "none": 0,
    "relu": 1,
    "leaky_relu": 2,
    "elu": 4,
    "gelu": 4,
    "silu": 2,
    "softplus": 5,
    "tanh": 1,
    "sigmoid": 1,
    "softmax": 5,
    "log_softmax": 5,
}
"""Operations per element; softmax: maximum, subtract, exp, sum, divide."""

BACKWARD_FLOPS = {
    "none": 0,
    "relu": 1,
    "leaky_relu": 2,
    "elu": 5,
    "gelu": 10,
    "silu": 6,
    "softplus": 2,
    "tanh": 4,
    "sigmoid": 3,
    "softmax": 4,
    "log_softmax": 4,
}

_MASKED = frozenset({"relu", "leaky_relu"})
_FROM_OPERAND = frozenset({"elu", "gelu", "silu", "softplus"})
"""Whose slope is worked out from x; that of the others comes from the result."""

_ONE = (Operand("x", "float, any shape"),)


def kept(activation: str, out: TensorType) -> tuple[TensorType, ...]:
    """What fc keeps for an activation: a mask, or x or the result, of one type."""
    if activation == "none":
        return ()
    return (TensorType("bool", out.shape) if activation in _MASKED else out,)


def _infer(kind: str) -> Callable[[Types, Attrs], tuple[TensorType, ...]]:
    def infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        arity(kind, _ONE, types)
        need_float(kind, "x", types, 0)
        return (types[0],)

    return infer


def _elementwise(
    kind: str,
    doc: str,
    formula: str,
    *,
    attrs: tuple[Attr, ...] = (),
    source: str = "",
    cases: tuple[Attrs, ...] = ({},),
    name: str = "h",
) -> Declaration:
    alone = kind in _FROM_OPERAND
    return Declaration(
        kind,
        doc,
        _ONE,
        _infer(kind),
        each_row,
        lambda types, attrs: FORWARD_FLOPS[kind] * types[0].numel(),
        lambda types, attrs, wrt: BACKWARD_FLOPS[kind] * types[0].numel() * len(wrt),
        attrs=attrs,
        saves=lambda types, attrs: (0,) if alone else (),
        residuals=lambda types, attrs: () if alone else kept(kind, types[0]),
        formula=formula,
        source=source,
        cases=tuple(Case(("float32[batch, 8]",), given) for given in cases),
        example=f"{{name: {name}, op: {kind}, in: x}}",
    )


RELU = _elementwise(
    "relu",
    "The positive part. Its derivative at 0 is 0.",
    "out = max(x, 0); dx = dy where x > 0, else 0",
)
LEAKY_RELU = _elementwise(
    "leaky_relu",
    "x where it is positive, else a small part of it. Its derivative at 0 is"
    " `negative_slope`, as PyTorch has it: that of relu where the slope is 0.",
    "out = x where x > 0, else negative_slope · x",
    attrs=(Attr("negative_slope", float, "the slope below 0", default=0.01),),
    source="Maas et al. (2013); the default is PyTorch's and JAX's, Keras has 0.2 or 0.3",
    cases=({}, {"negative_slope": 0.2}),
)
ELU = _elementwise(
    "elu",
    "x where it is positive, else an exponential that comes down to -alpha. Its"
    " derivative at 0 is alpha, as JAX and PyTorch have it.",
    "out = x where x > 0, else alpha · (exp(x) - 1)",
    attrs=(Attr("alpha", float, "what it comes down to, negated", default=1.0),),
    source="Clevert, Unterthiner and Hochreiter (2016)",
)
SILU = _elementwise(
    "silu",
    "x times its logistic function, also called swish.",
    "out = x · sigmoid(x); dx = dy · s · (1 + x · (1 - s)), s = sigmoid(x)",
    source="Hendrycks and Gimpel (2016); Elfwing, Uchibe and Doya (2018)",
)
SOFTPLUS = _elementwise(
    "softplus",
    "The smooth positive part, without overflow.",
    "out = log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|)); dx = dy · sigmoid(x)",
)
TANH = _elementwise(
    "tanh", "The hyperbolic tangent.", "out = tanh x; dx = dy · (1 - out²)"
)
SIGMOID = _elementwise(
    "sigmoid",
    "The logistic function.",
    "out = 1 / (1 + exp(-x)); dx = dy · out · (1 - out)",
)

_APPROXIMATE_FORWARD, _APPROXIMATE_BACKWARD = 6, 15

GELU = Declaration(
    "gelu",
    "x times the chance that a standard normal number is below it. It is exact as in"
    " PyTorch and Keras; JAX approximates where it is not told otherwise.",
    _ONE,
    _infer("gelu"),
    each_row,
    lambda types, attrs: (
        (_APPROXIMATE_FORWARD if attrs["approximate"] else FORWARD_FLOPS["gelu"])
        * types[0].numel()
    ),
    lambda types, attrs, wrt: (
        (_APPROXIMATE_BACKWARD if attrs["approximate"] else BACKWARD_FLOPS["gelu"])
        * types[0].numel()
        * len(wrt)
    ),
    attrs=(
        Attr(
            "approximate",
            bool,
            "by tanh, as BERT's and GPT-2's weights were trained: off by up to 0.0005",
            default=False,
        ),
    ),
    saves=lambda types, attrs: (0,),
    formula="out = x · Φ(x), Φ(x) = (1 + erf(x / √2)) / 2;"
    " approximate: Φ(x) ≈ (1 + tanh(√(2/π) · (x + 0.044715 · x³))) / 2",
    source="Hendrycks and Gimpel (2016)",
    cases=(
        Case(("float32[batch, 8]",)),
        Case(("float32[batch, 8]",), {"approximate": True}),
    ),
    example="{name: h, op: gelu, in: x}",
)


def _infer_along(kind: str) -> Callable[[Types, Attrs], tuple[TensorType, ...]]:
    def infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        arity(kind, _ONE, types)
        need_float(kind, "x", types, 0)
        if types[0].rank == 0:
            raise OpError(f"{kind} needs a dimension, 'x' is {types[0]}", operand=0)
        normal_axis(kind, attrs["axis"], types[0].rank)
        return (types[0],)

    return infer


def _rows_along(kind: str) -> Callable[[Types, Attrs], Rule]:
    def rows(types: Types, attrs: Attrs) -> Rule:
        axis = normal_axis(kind, attrs["axis"], types[0].rank)
        return "whole" if axis == 0 else "rows"

    return rows


def _along(
    kind: str, doc: str, formula: str, *, meaning: str, name: str
) -> Declaration:
    """An activation that sees all elements along an axis."""
    return Declaration(
        kind,
        doc,
        (Operand("x", "float, at least one dimension"),),
        _infer_along(kind),
        _rows_along(kind),
        lambda types, attrs: FORWARD_FLOPS[kind] * types[0].numel(),
        lambda types, attrs, wrt: BACKWARD_FLOPS[kind] * types[0].numel() * len(wrt),
        attrs=(Attr("axis", int, meaning, default=-1),),
        residuals=lambda types, attrs: kept(kind, types[0]),
        formula=formula,
        cases=(
            Case(("float32[batch, 8]",)),
            Case(("float32[batch, 8]",), {"axis": 0}),
        ),
        example=f"{{name: {name}, op: {kind}, in: logits}}",
    )


SOFTMAX = _along(
    "softmax",
    "Positive values that sum to 1 along an axis; the maximum is taken off first, so"
    " that no exponential overflows.",
    "out = exp(x) / Σ exp(x); dx = out · (dy - Σ dy · out)",
    meaning="the axis that sums to 1",
    name="probabilities",
)
LOG_SOFTMAX = _along(
    "log_softmax",
    "The logarithms of softmax, exact where softmax itself would be 0.",
    "out = x - log Σ exp(x); dx = dy - exp(out) · Σ dy",
    meaning="the axis along which the exponentials sum to 1",
    name="log_probabilities",
)

DECLARATIONS = (
    RELU,
    LEAKY_RELU,
    ELU,
    GELU,
    SILU,
    SOFTPLUS,
    TANH,
    SIGMOID,
    SOFTMAX,
    LOG_SOFTMAX,
)
