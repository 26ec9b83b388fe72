"""Activation functions: relu, gelu, softmax and others, as ops and inside layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from placer.ops.common.checks import normalize_axis, rule_along_axis
from placer.ops.common.costs import flops_per_element, grad_flops_per_element
from placer.ops.declaration import Attr, Attrs, Declaration, case, choice, flag
from placer.ops.elementwise.broadcasting import UNARY
from placer.ops.operand import Operand, Types, check_operand
from placer.place.types import TensorType

_FLOPS = {
    "none": (0, 0),
    "relu": (1, 1),
    "leaky_relu": (2, 2),
    "elu": (4, 5),
    "gelu": (4, 10),
    "silu": (2, 6),
    "softplus": (5, 2),
    "tanh": (1, 4),
    "sigmoid": (1, 3),
    "softmax": (5, 4),
    "log_softmax": (5, 4),
}
"""Operations per element of the forward and of the backward.

The forward of softmax: maximum, subtract, exp, sum, divide.
"""

ACTIVATIONS = tuple(_FLOPS)
"""The values of a layer's attribute `activation`; each uses its op's defaults."""

FORWARD_FLOPS = {name: forward for name, (forward, _) in _FLOPS.items()}
BACKWARD_FLOPS = {name: backward for name, (_, backward) in _FLOPS.items()}

_MASKED = frozenset({"relu", "leaky_relu"})
"""Activations whose derivative needs only a mask of the positive elements."""

_FROM_OPERAND = frozenset({"elu", "gelu", "silu", "softplus"})
"""Activations whose derivative is computed from x; other derivatives use the result."""


BIAS = flag("bias", "whether to add a bias `b`", default=True, for_parameters=True)
"""The attribute of a layer with the parameters `w` and `b`."""


def activation_attr(dimension: str) -> Attr:
    """Return the attribute `activation` of a layer; softmax runs along `dimension`."""
    doc = f"the function applied to the result; softmax along {dimension}"
    return choice("activation", doc, ACTIVATIONS)


def linear_unless_activated(types: Types, attrs: Attrs) -> tuple[tuple[int, ...], ...]:
    """Return the linear groups of a layer without an activation: (x, b) and (w, b)."""
    if attrs["activation"] != "none":
        return ()
    return ((0, 2), (1, 2)) if len(types) == 3 else ((0,), (1,))


def activation_residuals(activation: str, out: TensorType) -> tuple[TensorType, ...]:
    """Return the types that a layer saves for its activation.

    This is nothing, a mask, or an array of the result's type.
    """
    if activation == "none":
        return ()
    return (TensorType("bool", out.shape) if activation in _MASKED else out,)


def _declare(kind: str, doc: str, **fields: Any) -> Declaration:
    """Declare an activation; `fields` override the entries of the tables above."""
    from_operand = kind in _FROM_OPERAND
    default = {
        "operands": UNARY,
        "flops": flops_per_element(FORWARD_FLOPS[kind]),
        "grad_flops": grad_flops_per_element(BACKWARD_FLOPS[kind]),
        "saves": lambda types, attrs: (0,) if from_operand else (),
        "residuals": lambda types, attrs: (
            () if from_operand else activation_residuals(kind, types[0])
        ),
        "cases": (case("float32[batch, 8]"),),
    }
    return Declaration(kind, doc, **{**default, **fields})


RELU = _declare(
    "relu",
    "The rectified linear unit: max(x, 0). Its derivative at 0 is 0, as in JAX"
    " and PyTorch.",
    formula="out = max(x, 0); dx = dy where x > 0, else 0",
)
LEAKY_RELU = _declare(
    "leaky_relu",
    "The leaky rectified linear unit: x if it is positive, else `negative_slope`"
    " · x. Its derivative at 0 is `negative_slope`, as in PyTorch; JAX uses 1.",
    formula="out = x where x > 0, else negative_slope · x",
    attrs=(Attr("negative_slope", float, "the slope below 0", default=0.01),),
    source="Maas et al. (2013); default of PyTorch and JAX (Keras uses 0.2 or 0.3)",
    cases=(case("float32[batch, 8]"), case("float32[batch, 8]", negative_slope=0.2)),
)
ELU = _declare(
    "elu",
    "The exponential linear unit: x if it is positive, else an exponential that"
    " approaches -alpha. Its derivative at 0 is alpha, as in JAX and PyTorch.",
    formula="out = x where x > 0, else alpha · (exp(x) - 1)",
    attrs=(Attr("alpha", float, "the negated limit for x → -∞", default=1.0),),
    source="Clevert, Unterthiner and Hochreiter (2016)",
)

_APPROXIMATE_FLOPS = (6, 15)


def _gelu_flops(types: Types, attrs: Attrs) -> int:
    forward, _ = _APPROXIMATE_FLOPS if attrs["approximate"] else _FLOPS["gelu"]
    return forward * types[0].numel()


def _gelu_grad_flops(types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
    _, backward = _APPROXIMATE_FLOPS if attrs["approximate"] else _FLOPS["gelu"]
    return backward * types[0].numel() * len(wrt)


GELU = _declare(
    "gelu",
    "The Gaussian error linear unit: x · Φ(x), where Φ is the distribution function of"
    " the standard normal distribution. Exact by default, as in PyTorch and Keras; JAX"
    " approximates by default.",
    formula="out = x · Φ(x), Φ(x) = (1 + erf(x / √2)) / 2;"
    " approximate: Φ(x) ≈ (1 + tanh(√(2/π) · (x + 0.044715 · x³))) / 2",
    attrs=(
        flag(
            "approximate",
            "approximate Φ by tanh, with an error of up to 0.0005; BERT and GPT-2"
            " use the approximation",
        ),
    ),
    source="Hendrycks and Gimpel (2016)",
    cases=(case("float32[batch, 8]"), case("float32[batch, 8]", approximate=True)),
    flops=_gelu_flops,
    grad_flops=_gelu_grad_flops,
)
SILU = _declare(
    "silu",
    "The sigmoid linear unit, also called swish: x · sigmoid(x).",
    formula="out = x · sigmoid(x); dx = dy · s · (1 + x · (1 - s)), s = sigmoid(x)",
    source="Hendrycks and Gimpel (2016); Elfwing, Uchibe and Doya (2018)",
)
SOFTPLUS = _declare(
    "softplus",
    "A smooth approximation of relu: log(1 + exp(x)), computed without overflow.",
    formula="out = log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|));"
    " dx = dy · sigmoid(x)",
)
TANH = _declare(
    "tanh", "The hyperbolic tangent of x.", formula="out = tanh x; dx = dy · (1 - out²)"
)
SIGMOID = _declare(
    "sigmoid",
    "The logistic function of x, with values in [0, 1].",
    formula="out = 1 / (1 + exp(-x)); dx = dy · out · (1 - out)",
)


def _infer_along_axis(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    check_operand(types, 0, "x", types[0].rank > 0, "a dimension")
    normalize_axis(attrs["axis"], types[0].rank)
    return (types[0],)


_along_axis = {
    "operands": (Operand("x", "float, at least one dimension", dtype="float"),),
    "batch_rule": rule_along_axis,
    "cases": (case("float32[batch, 8]"), case("float32[batch, 8]", axis=0)),
}
"""The fields of an activation that depends on all elements along an axis."""

SOFTMAX = _declare(
    "softmax",
    "The softmax along an axis: positive values that sum to 1. The maximum is"
    " subtracted first, so that no exponential overflows.",
    formula="out = exp(x) / Σ exp(x); dx = out · (dy - Σ dy · out)",
    result_types=_infer_along_axis,
    attrs=(Attr("axis", int, "the axis along which the result sums to 1", default=-1),),
    **_along_axis,
)
LOG_SOFTMAX = _declare(
    "log_softmax",
    "The logarithm of softmax along an axis. It stays accurate where softmax"
    " rounds to 0.",
    formula="out = x - log Σ exp(x); dx = dy - exp(out) · Σ dy",
    result_types=_infer_along_axis,
    attrs=(
        Attr(
            "axis",
            int,
            "the axis of the softmax",
            default=-1,
        ),
    ),
    **_along_axis,
)
