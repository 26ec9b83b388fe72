"""Activation functions, with derivatives from the operand, the result or a mask.

In each backward, `dy` is the cotangent of the result y, and the function returns that
of the operand, dx = dy · y'(x).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

Pair = tuple[jax.Array, jax.Array]


@jax.custom_vjp
def relu(x: jax.Array) -> jax.Array:
    return jnp.maximum(x, 0)


def _relu_forward(x: jax.Array) -> Pair:
    y = jnp.maximum(x, 0)
    return y, y > 0


def _relu_backward(positive: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    # y' = 1 where x > 0, else 0
    return (jnp.where(positive, dy, 0),)


relu.defvjp(_relu_forward, _relu_backward)


def leaky_relu(x: jax.Array, *, negative_slope: float = 0.01) -> jax.Array:
    return _leaky_relu(negative_slope, x)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _leaky_relu(slope: float, x: jax.Array) -> jax.Array:
    return _leaky_relu_forward(slope, x)[0]


def _leaky_relu_forward(slope: float, x: jax.Array) -> Pair:
    positive = x > 0
    return jnp.where(positive, x, slope * x), positive


def _leaky_relu_backward(
    slope: float, positive: jax.Array, dy: jax.Array
) -> tuple[jax.Array]:
    # y' = 1 where x > 0, else slope
    return (jnp.where(positive, dy, slope * dy),)


_leaky_relu.defvjp(_leaky_relu_forward, _leaky_relu_backward)


def elu(x: jax.Array, *, alpha: float = 1.0) -> jax.Array:
    return _elu(alpha, x)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _elu(alpha: float, x: jax.Array) -> jax.Array:
    return jnp.where(x > 0, x, alpha * jnp.expm1(jnp.minimum(x, 0)))


def _elu_forward(alpha: float, x: jax.Array) -> Pair:
    return _elu(alpha, x), x


def _elu_backward(alpha: float, x: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    # y' = 1 where x > 0, else alpha · exp(x); the minimum avoids overflow where x > 0
    slope = alpha * jnp.exp(jnp.minimum(x, 0))
    return (jnp.where(x > 0, dy, slope * dy),)


_elu.defvjp(_elu_forward, _elu_backward)


def gelu(x: jax.Array, *, approximate: bool = False) -> jax.Array:
    return _gelu_tanh(x) if approximate else _gelu(x)


def _normal_cdf(x: jax.Array) -> jax.Array:
    """Return Φ(x) = erfc(-x / √2) / 2, accurate far below 0 where 1 + erf cancels."""
    return 0.5 * jax.lax.erfc(-x * math.sqrt(0.5))


@jax.custom_vjp
def _gelu(x: jax.Array) -> jax.Array:
    return x * _normal_cdf(x)


def _gelu_forward(x: jax.Array) -> Pair:
    return _gelu(x), x


def _gelu_backward(x: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    # y' = Φ(x) + x · φ(x), where φ(x) = exp(-x² / 2) / √(2π)
    density = jnp.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    return (dy * (_normal_cdf(x) + x * density),)


_gelu.defvjp(_gelu_forward, _gelu_backward)

_LINEAR, _CUBIC = 2 * math.sqrt(2 / math.pi), 2 * math.sqrt(2 / math.pi) * 0.044715
"""2u = _LINEAR · x + _CUBIC · x³, where u is the argument of tanh."""

_FAR = 32.0
"""Beyond ±_FAR the approximate Φ is 0 or 1 in every dtype; its square fits float16."""


@jax.custom_vjp
def _gelu_tanh(x: jax.Array) -> jax.Array:
    # Φ(x) ≈ (1 + tanh u) / 2 = sigmoid(2u), which does not cancel far below 0
    return x * jax.lax.logistic(x * (_LINEAR + _CUBIC * x * x))


def _gelu_tanh_forward(x: jax.Array) -> Pair:
    return _gelu_tanh(x), x


def _gelu_tanh_backward(x: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    # y' = s + x · s · (1 - s) · (2u)', where s = sigmoid(2u); x is clipped because its
    # powers overflow while s · (1 - s) is 0
    near = jnp.clip(x, -_FAR, _FAR)
    square = near * near
    s = jax.lax.logistic(near * (_LINEAR + _CUBIC * square))
    inner = near * (_LINEAR + 3 * _CUBIC * square)
    return (dy * (s + s * (1 - s) * inner),)


_gelu_tanh.defvjp(_gelu_tanh_forward, _gelu_tanh_backward)


@jax.custom_vjp
def silu(x: jax.Array) -> jax.Array:
    return x * jax.lax.logistic(x)


def _silu_forward(x: jax.Array) -> Pair:
    return silu(x), x


def _silu_backward(x: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    # y' = s + x · s · (1 - s), where s = sigmoid(x)
    s = jax.lax.logistic(x)
    return (dy * s * (1 + x * (1 - s)),)


silu.defvjp(_silu_forward, _silu_backward)


@jax.custom_vjp
def softplus(x: jax.Array) -> jax.Array:
    # log(1 + exp(x)) overflows for large x
    return jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


def _softplus_forward(x: jax.Array) -> Pair:
    return softplus(x), x


def _softplus_backward(x: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    # y' = sigmoid(x)
    return (dy * jax.lax.logistic(x),)


softplus.defvjp(_softplus_forward, _softplus_backward)


@jax.custom_vjp
def tanh(x: jax.Array) -> jax.Array:
    return jnp.tanh(x)


def _tanh_forward(x: jax.Array) -> Pair:
    y = jnp.tanh(x)
    return y, y


def _tanh_backward(y: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    # y' = 1 - y²; the product does not cancel near ±1
    return (dy * (1 - y) * (1 + y),)


tanh.defvjp(_tanh_forward, _tanh_backward)


@jax.custom_vjp
def sigmoid(x: jax.Array) -> jax.Array:
    return jax.lax.logistic(x)


def _sigmoid_forward(x: jax.Array) -> Pair:
    y = jax.lax.logistic(x)
    return y, y


def _sigmoid_backward(y: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    # y' = y · (1 - y)
    return (dy * y * (1 - y),)


sigmoid.defvjp(_sigmoid_forward, _sigmoid_backward)


def softmax(x: jax.Array, *, axis: int = -1) -> jax.Array:
    return _softmax(axis, x)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _softmax(axis: int, x: jax.Array) -> jax.Array:
    powers = jnp.exp(x - jnp.max(x, axis=axis, keepdims=True))
    return powers / jnp.sum(powers, axis=axis, keepdims=True)


def _softmax_forward(axis: int, x: jax.Array) -> Pair:
    y = _softmax(axis, x)
    return y, y


def _softmax_backward(axis: int, y: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    # ∂y_i/∂x_j = y_i · (δ_ij - y_j), so dx = y · (dy - Σ dy · y)
    return (y * (dy - jnp.sum(dy * y, axis=axis, keepdims=True)),)


_softmax.defvjp(_softmax_forward, _softmax_backward)


def log_softmax(x: jax.Array, *, axis: int = -1) -> jax.Array:
    return _log_softmax(axis, x)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _log_softmax(axis: int, x: jax.Array) -> jax.Array:
    shifted = x - jnp.max(x, axis=axis, keepdims=True)
    return shifted - jnp.log(jnp.sum(jnp.exp(shifted), axis=axis, keepdims=True))


def _log_softmax_forward(axis: int, x: jax.Array) -> Pair:
    y = _log_softmax(axis, x)
    return y, y


def _log_softmax_backward(axis: int, y: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    # ∂y_i/∂x_j = δ_ij - exp(y_j), so dx = dy - exp(y) · Σ dy
    return (dy - jnp.exp(y) * jnp.sum(dy, axis=axis, keepdims=True),)


_log_softmax.defvjp(_log_softmax_forward, _log_softmax_backward)

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
