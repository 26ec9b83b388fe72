"""The ops that batch_norm expands to. Channels are the last dimension."""

from __future__ import annotations

from math import prod

import jax
import jax.numpy as jnp

from placer.ops.common.gradient_jax import differentiable
from placer.ops.elementwise.broadcasting_jax import divide

Count = int | jax.Array | None
Four = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


def _axes(x: jax.Array) -> tuple[int, ...]:
    return tuple(range(x.ndim - 1))


def _count_elements(x: jax.Array, count: Count) -> int | jax.Array:
    """Return the number of elements of a channel in the global batch."""
    return (x.shape[0] if count is None else count) * prod(x.shape[1:-1])


def variance(x: jax.Array, mean: jax.Array, *, count: Count = None) -> jax.Array:
    return divide(_squares(x, mean), _count_elements(x, count))


def _squares_forward(
    x: jax.Array, mean: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return jnp.sum(jnp.square(x - mean), _axes(x)), (x, mean)


def _squares_backward(
    saved: tuple[jax.Array, jax.Array], dy: jax.Array
) -> tuple[jax.Array, jax.Array]:
    # dx = 2 · dy · (x - mean); dmean = -2 · dy · Σ (x - mean) = 0
    x, mean = saved
    return 2 * dy * (x - mean), jnp.zeros_like(mean)


_squares = differentiable(_squares_forward, _squares_backward)


def normalize(
    x: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    *,
    epsilon: float,
) -> jax.Array:
    return _normalize(epsilon, x, mean, variance, scale, bias)


def _normalize_forward(
    epsilon: float,
    x: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
) -> tuple[jax.Array, Four]:
    y = (x - mean) * (jax.lax.rsqrt(variance + epsilon) * scale) + bias
    return y, (x, mean, variance, scale)


def _normalize_backward(
    epsilon: float, saved: Four, dy: jax.Array
) -> tuple[jax.Array, ...]:
    # y = (x - mean) · r · scale + bias with r = (variance + epsilon)^(-1/2), and
    # dr/dvariance = -r³ / 2
    x, mean, variance, scale = saved
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


_normalize = differentiable(_normalize_forward, _normalize_backward, static=1)


def replica_norm(
    x: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    *,
    epsilon: float,
    count: Count = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    y, mean, variance = _replica_norm(epsilon, x, scale, bias)
    mean, variance = jax.lax.stop_gradient((mean, variance))
    rows = x.shape[0] if count is None else count
    return y, divide(mean * x.shape[0], rows), divide(variance * x.shape[0], rows)


Norm = tuple[jax.Array, jax.Array, jax.Array]


def _normalize_rows(
    epsilon: float, x: jax.Array, scale: jax.Array, bias: jax.Array
) -> Norm:
    # A place without rows must contribute 0, not 0 / 0
    n = max(1, prod(x.shape[:-1]))
    mean = jnp.sum(x, _axes(x)) / n
    variance = jnp.sum(jnp.square(x - mean), _axes(x)) / n
    y = (x - mean) * (jax.lax.rsqrt(variance + epsilon) * scale) + bias
    return y, mean, variance


def _replica_forward(
    epsilon: float, x: jax.Array, scale: jax.Array, bias: jax.Array
) -> tuple[Norm, Four]:
    y, mean, variance = _normalize_rows(epsilon, x, scale, bias)
    inverse = jax.lax.rsqrt(variance + epsilon)
    return (y, mean, variance), (x, scale, mean, inverse)


def _replica_backward(
    epsilon: float, saved: Four, dys: Norm
) -> tuple[jax.Array, jax.Array, jax.Array]:
    # With z = (x - mean) · r the normalized x, and means over the rows and positions:
    # dx = scale · r · (dy - mean(dy) - z · mean(dy · z)) (Ioffe and Szegedy 2015)
    x, scale, mean, inverse = saved
    dy, axes = dys[0], _axes(x)
    n = max(1, prod(x.shape[:-1]))
    normalized = (x - mean) * inverse
    d_bias, d_scale = jnp.sum(dy, axes), jnp.sum(dy * normalized, axes)
    dx = (dy - d_bias / n - normalized * (d_scale / n)) * (scale * inverse)
    return dx, d_scale, d_bias


_replica_norm = differentiable(_replica_forward, _replica_backward, 1, _normalize_rows)


def moving_average(old: jax.Array, new: jax.Array, *, momentum: float) -> jax.Array:
    return momentum * old + (1 - momentum) * new
