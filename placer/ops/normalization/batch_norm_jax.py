"""The ops that batch_norm expands to. Channels are the last dimension."""

from __future__ import annotations

from math import prod

import jax
import jax.numpy as jnp

from ..common.gradient_jax import Backward, WithBackward, with_gradient
from ..elementwise.broadcasting_jax import divide

Count = int | jax.Array | None
Three = tuple[jax.Array, jax.Array, jax.Array]


def _axes(x: jax.Array) -> tuple[int, ...]:
    return tuple(range(x.ndim - 1))


def variance(x: jax.Array, mean: jax.Array, *, count: Count = None) -> jax.Array:
    rows = x.shape[0] if count is None else count
    return divide(_squares(x, mean), rows * prod(x.shape[1:-1]))


@with_gradient
def _squares(x: jax.Array, mean: jax.Array) -> WithBackward:
    # dx = 2 · dy · (x - mean); dmean = -2 · dy · Σ (x - mean) = 0
    return (
        jnp.sum(jnp.square(x - mean), _axes(x)),
        lambda dy: (2 * dy * (x - mean), jnp.zeros_like(mean)),
    )


@with_gradient
def normalize(
    x: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    *,
    epsilon: float,
) -> WithBackward:
    y = (x - mean) * (jax.lax.rsqrt(variance + epsilon) * scale) + bias

    def backward(dy: jax.Array) -> tuple[jax.Array, ...]:
        # y = (x - mean) · r · scale + bias with r = (variance + epsilon)^(-1/2), and
        # dr/dvariance = -r³ / 2
        inverse = jax.lax.rsqrt(variance + epsilon)
        axes = _axes(x)
        d_bias = jnp.sum(dy, axes)
        d_product = jnp.sum(dy * (x - mean), axes)  # the cotangent of r · scale
        slope = scale * inverse
        return (
            dy * slope,
            -d_bias * slope,
            -0.5 * d_product * slope * inverse * inverse,
            d_product * inverse,
            d_bias,
        )

    return y, backward


def replica_norm(
    x: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    *,
    epsilon: float,
    count: Count = None,
) -> Three:
    y, mean, variance = _normalize_rows(x, scale, bias, epsilon=epsilon)
    mean, variance = jax.lax.stop_gradient((mean, variance))
    rows = x.shape[0] if count is None else count
    return y, divide(mean * x.shape[0], rows), divide(variance * x.shape[0], rows)


@with_gradient
def _normalize_rows(
    x: jax.Array, scale: jax.Array, bias: jax.Array, *, epsilon: float
) -> tuple[Three, Backward]:
    # A node without rows must contribute 0, not 0 / 0
    n = max(1, prod(x.shape[:-1]))
    mean = jnp.sum(x, _axes(x)) / n
    variance = jnp.sum(jnp.square(x - mean), _axes(x)) / n
    inverse = jax.lax.rsqrt(variance + epsilon)
    y = (x - mean) * (inverse * scale) + bias

    def backward(dys: Three) -> Three:
        # With z = (x - mean) · r the normalized x, and means over the rows and
        # positions: dx = scale · r · (dy - mean(dy) - z · mean(dy · z)) (Ioffe and
        # Szegedy 2015)
        dy, axes = dys[0], _axes(x)
        normalized = (x - mean) * inverse
        d_bias, d_scale = jnp.sum(dy, axes), jnp.sum(dy * normalized, axes)
        dx = (dy - d_bias / n - normalized * (d_scale / n)) * (scale * inverse)
        return dx, d_scale, d_bias

    return (y, mean, variance), backward


def moving_average(old: jax.Array, new: jax.Array, *, momentum: float) -> jax.Array:
    return momentum * old + (1 - momentum) * new
