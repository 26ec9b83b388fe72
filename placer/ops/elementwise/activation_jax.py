"""Activation functions, with derivatives from the operand, the result or a mask.

In each backward, `dy` is the cotangent of the result y, and the function returns that
of the operand, dx = dy · y'(x).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from placer.ops.common.gradient_jax import differentiable, from_operand, from_result

Pair = tuple[jax.Array, jax.Array]


def _relu_forward(x: jax.Array) -> Pair:
    y = jnp.maximum(x, 0)
    return y, y > 0


relu = differentiable(
    _relu_forward,
    # y' = 1 where x > 0, else 0
    lambda positive, dy: (jnp.where(positive, dy, 0),),
    function=lambda x: jnp.maximum(x, 0),
)


def leaky_relu(x: jax.Array, *, negative_slope: float = 0.01) -> jax.Array:
    return _leaky_relu(negative_slope, x)


def _leaky_relu_forward(slope: float, x: jax.Array) -> Pair:
    positive = x > 0
    return jnp.where(positive, x, slope * x), positive


_leaky_relu = differentiable(
    _leaky_relu_forward,
    # y' = 1 where x > 0, else slope
    lambda slope, positive, dy: (jnp.where(positive, dy, slope * dy),),
    static=1,
)


def elu(x: jax.Array, *, alpha: float = 1.0) -> jax.Array:
    return _elu(alpha, x)


def _elu_forward(alpha: float, x: jax.Array) -> Pair:
    return jnp.where(x > 0, x, alpha * jnp.expm1(jnp.minimum(x, 0))), x


def _elu_backward(alpha: float, x: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    # y' = 1 where x > 0, else alpha · exp(x); the minimum avoids overflow where x > 0
    slope = alpha * jnp.exp(jnp.minimum(x, 0))
    return (jnp.where(x > 0, dy, slope * dy),)


_elu = differentiable(_elu_forward, _elu_backward, static=1)


def gelu(x: jax.Array, *, approximate: bool = False) -> jax.Array:
    return _gelu_tanh(x) if approximate else _gelu(x)


def _normal_cdf(x: jax.Array) -> jax.Array:
    """Return Φ(x) = erfc(-x / √2) / 2, accurate far below 0 where 1 + erf cancels."""
    return 0.5 * jax.lax.erfc(-x * math.sqrt(0.5))


def _gelu_backward(x: jax.Array, dy: jax.Array) -> jax.Array:
    # y' = Φ(x) + x · φ(x), where φ(x) = exp(-x² / 2) / √(2π)
    density = jnp.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    return dy * (_normal_cdf(x) + x * density)


_gelu = from_operand(lambda x: x * _normal_cdf(x), _gelu_backward)

_LINEAR, _CUBIC = 2 * math.sqrt(2 / math.pi), 2 * math.sqrt(2 / math.pi) * 0.044715
"""2u = _LINEAR · x + _CUBIC · x³, where u is the argument of tanh."""

_FAR = 32.0
"""Beyond ±_FAR the approximate Φ is 0 or 1 in every dtype; its square fits float16."""


def _gelu_tanh_backward(x: jax.Array, dy: jax.Array) -> jax.Array:
    # y' = s + x · s · (1 - s) · (2u)', where s = sigmoid(2u); x is clipped because its
    # powers overflow while s · (1 - s) is 0
    near = jnp.clip(x, -_FAR, _FAR)
    square = near * near
    s = jax.lax.logistic(near * (_LINEAR + _CUBIC * square))
    inner = near * (_LINEAR + 3 * _CUBIC * square)
    return dy * (s + s * (1 - s) * inner)


# Φ(x) ≈ (1 + tanh u) / 2 = sigmoid(2u), which does not cancel far below 0
_gelu_tanh = from_operand(
    lambda x: x * jax.lax.logistic(x * (_LINEAR + _CUBIC * x * x)), _gelu_tanh_backward
)


def _silu_backward(x: jax.Array, dy: jax.Array) -> jax.Array:
    # y' = s + x · s · (1 - s), where s = sigmoid(x)
    s = jax.lax.logistic(x)
    return dy * s * (1 + x * (1 - s))


silu = from_operand(lambda x: x * jax.lax.logistic(x), _silu_backward)
softplus = from_operand(
    # log(1 + exp(x)) overflows for large x
    lambda x: jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x))),
    # y' = sigmoid(x)
    lambda x, dy: dy * jax.lax.logistic(x),
)
# y' = 1 - y²; the product does not cancel near ±1
tanh = from_result(jnp.tanh, lambda y, dy: dy * (1 - y) * (1 + y))
# y' = y · (1 - y)
sigmoid = from_result(lambda x: jax.lax.logistic(x), lambda y, dy: dy * y * (1 - y))


def softmax(x: jax.Array, *, axis: int = -1) -> jax.Array:
    return _softmax(axis, x)


def _softmax_forward(axis: int, x: jax.Array) -> Pair:
    powers = jnp.exp(x - jnp.max(x, axis=axis, keepdims=True))
    y = powers / jnp.sum(powers, axis=axis, keepdims=True)
    return y, y


def _softmax_backward(axis: int, y: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    # ∂y_i/∂x_j = y_i · (δ_ij - y_j), so dx = y · (dy - Σ dy · y)
    return (y * (dy - jnp.sum(dy * y, axis=axis, keepdims=True)),)


_softmax = differentiable(_softmax_forward, _softmax_backward, static=1)


def log_softmax(x: jax.Array, *, axis: int = -1) -> jax.Array:
    return _log_softmax(axis, x)


def _log_softmax_forward(axis: int, x: jax.Array) -> Pair:
    shifted = x - jnp.max(x, axis=axis, keepdims=True)
    y = shifted - jnp.log(jnp.sum(jnp.exp(shifted), axis=axis, keepdims=True))
    return y, y


def _log_softmax_backward(axis: int, y: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    # ∂y_i/∂x_j = δ_ij - exp(y_j), so dx = dy - exp(y) · Σ dy
    return (dy - jnp.exp(y) * jnp.sum(dy, axis=axis, keepdims=True),)


_log_softmax = differentiable(_log_softmax_forward, _log_softmax_backward, static=1)

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": relu,
    "leaky_relu": leaky_relu,
    "elu": elu,
    "gelu": gelu,
    "silu": silu,
    "softplus": softplus,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "softmax": softmax,
    "log_softmax": log_softmax,
}
"""The activation functions of layers, by their names in a spec."""
