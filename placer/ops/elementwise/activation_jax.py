"""Activation functions, with derivatives from the operand, the result or a mask.

In each backward, `dy` is the cotangent of the result y. The function returns the
cotangent of the operand, dx = dy · y'(x).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from ..common.gradient_jax import WithBackward, with_gradient


@with_gradient
def relu(x: jax.Array) -> WithBackward:
    y = jnp.maximum(x, 0)
    positive = y > 0
    # y' = 1 where x > 0, else 0
    return y, lambda dy: jnp.where(positive, dy, 0)


@with_gradient
def leaky_relu(x: jax.Array, *, negative_slope: float = 0.01) -> WithBackward:
    positive = x > 0
    # y' = 1 where x > 0, else negative_slope
    return (
        jnp.where(positive, x, negative_slope * x),
        lambda dy: jnp.where(positive, dy, negative_slope * dy),
    )


@with_gradient
def elu(x: jax.Array, *, alpha: float = 1.0) -> WithBackward:
    def backward(dy: jax.Array) -> jax.Array:
        # y' = 1 where x > 0, else alpha · exp(x); the minimum avoids overflow
        slope = alpha * jnp.exp(jnp.minimum(x, 0))
        return jnp.where(x > 0, dy, slope * dy)

    return jnp.where(x > 0, x, alpha * jnp.expm1(jnp.minimum(x, 0))), backward


def gelu(x: jax.Array, *, approximate: bool = False) -> jax.Array:
    return _gelu_tanh(x) if approximate else _gelu(x)


def _normal_cdf(x: jax.Array) -> jax.Array:
    """Return Φ(x) = erfc(-x / √2) / 2; 1 + erf would cancel far below 0."""
    return 0.5 * jax.lax.erfc(-x * math.sqrt(0.5))


@with_gradient
def _gelu(x: jax.Array) -> WithBackward:
    def backward(dy: jax.Array) -> jax.Array:
        # y' = Φ(x) + x · φ(x), where φ(x) = exp(-x² / 2) / √(2π)
        density = jnp.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
        return dy * (_normal_cdf(x) + x * density)

    return x * _normal_cdf(x), backward


_LINEAR, _CUBIC = 2 * math.sqrt(2 / math.pi), 2 * math.sqrt(2 / math.pi) * 0.044715
"""2u = _LINEAR · x + _CUBIC · x³, where u is the argument of tanh."""

_FAR = 32.0
"""Beyond ±_FAR the approximate Φ is 0 or 1 in every dtype; its square fits float16."""


@with_gradient
def _gelu_tanh(x: jax.Array) -> WithBackward:
    def backward(dy: jax.Array) -> jax.Array:
        # y' = s + x · s · (1 - s) · (2u)', where s = sigmoid(2u); x is clipped because
        # its powers overflow while s · (1 - s) is 0
        near = jnp.clip(x, -_FAR, _FAR)
        square = near * near
        s = jax.lax.logistic(near * (_LINEAR + _CUBIC * square))
        inner = near * (_LINEAR + 3 * _CUBIC * square)
        return dy * (s + s * (1 - s) * inner)

    # Φ(x) ≈ (1 + tanh u) / 2 = sigmoid(2u), which does not cancel far below 0
    return x * jax.lax.logistic(x * (_LINEAR + _CUBIC * x * x)), backward


@with_gradient
def silu(x: jax.Array) -> WithBackward:
    def backward(dy: jax.Array) -> jax.Array:
        # y' = s + x · s · (1 - s), where s = sigmoid(x)
        s = jax.lax.logistic(x)
        return dy * s * (1 + x * (1 - s))

    return x * jax.lax.logistic(x), backward


@with_gradient
def softplus(x: jax.Array) -> WithBackward:
    # log(1 + exp(x)) overflows for large x
    y = jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))
    # y' = sigmoid(x)
    return y, lambda dy: dy * jax.lax.logistic(x)


@with_gradient
def tanh(x: jax.Array) -> WithBackward:
    y = jnp.tanh(x)
    # y' = 1 - y²; the product does not cancel near ±1
    return y, lambda dy: dy * (1 - y) * (1 + y)


@with_gradient
def sigmoid(x: jax.Array) -> WithBackward:
    y = jax.lax.logistic(x)
    # y' = y · (1 - y)
    return y, lambda dy: dy * y * (1 - y)


@with_gradient
def softmax(x: jax.Array, *, axis: int = -1) -> WithBackward:
    powers = jnp.exp(x - jnp.max(x, axis=axis, keepdims=True))
    y = powers / jnp.sum(powers, axis=axis, keepdims=True)
    # ∂y_i/∂x_j = y_i · (δ_ij - y_j), so dx = y · (dy - Σ dy · y)
    return y, lambda dy: y * (dy - jnp.sum(dy * y, axis=axis, keepdims=True))


@with_gradient
def log_softmax(x: jax.Array, *, axis: int = -1) -> WithBackward:
    shifted = x - jnp.max(x, axis=axis, keepdims=True)
    y = shifted - jnp.log(jnp.sum(jnp.exp(shifted), axis=axis, keepdims=True))
    # ∂y_i/∂x_j = δ_ij - exp(y_j), so dx = dy - exp(y) · Σ dy
    return y, lambda dy: dy - jnp.exp(y) * jnp.sum(dy, axis=axis, keepdims=True)


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
"""The activation functions of layers, by name."""
