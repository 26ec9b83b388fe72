"""What batch_norm is put together from; channels are the last dimension."""

from __future__ import annotations

from functools import partial
from math import prod

import jax
import jax.numpy as jnp

from placer.ops.elementwise.broadcasting_jax import divide

Count = int | jax.Array | None
Four = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


def _axes(x: jax.Array) -> tuple[int, ...]:
    return tuple(range(x.ndim - 1))


def _elements(x: jax.Array, count: Count) -> int | jax.Array:
    """How many elements of the whole batch go into one of a channel."""
    return (x.shape[0] if count is None else count) * prod(x.shape[1:-1])


def variance(x: jax.Array, mean: jax.Array, *, count: Count = None) -> jax.Array:
    return divide(_squares(x, mean), _elements(x, count))


@jax.custom_vjp
def _squares(x: jax.Array, mean: jax.Array) -> jax.Array:
    return jnp.sum(jnp.square(x - mean), _axes(x))


def _squares_forward(
    x: jax.Array, mean: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _squares(x, mean), (x, mean)


def _squares_backward(
    kept: tuple[jax.Array, jax.Array], dy: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, mean = kept
    return 2 * dy * (x - mean), jnp.zeros_like(mean)


_squares.defvjp(_squares_forward, _squares_backward)


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


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _normalize(
    epsilon: float,
    x: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
) -> jax.Array:
    return (x - mean) * (jax.lax.rsqrt(variance + epsilon) * scale) + bias


def _normalize_forward(
    epsilon: float,
    x: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
) -> tuple[jax.Array, Four]:
    y = _normalize(epsilon, x, mean, variance, scale, bias)
    return y, (x, mean, variance, scale)


def _normalize_backward(
    epsilon: float, kept: Four, dy: jax.Array
) -> tuple[jax.Array, ...]:
    x, mean, variance, scale = kept
    inverse = jax.lax.rsqrt(variance + epsilon)
    axes = _axes(x)
    d_bias = jnp.sum(dy, axes)
    of_centred = jnp.sum(dy * (x - mean), axes)
    slope = scale * inverse
    return (
        dy * slope,
        -d_bias * slope,
        -0.5 * of_centred * slope * inverse * inverse,
        of_centred * inverse,
        d_bias,
    )


_normalize.defvjp(_normalize_forward, _normalize_backward)


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
    whole = x.shape[0] if count is None else count
    return y, divide(mean * x.shape[0], whole), divide(variance * x.shape[0], whole)


Norm = tuple[jax.Array, jax.Array, jax.Array]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _replica_norm(
    epsilon: float, x: jax.Array, scale: jax.Array, bias: jax.Array
) -> Norm:
    # A place without rows has nothing to add: its sums are 0, not 0 / 0.
    n = max(1, prod(x.shape[:-1]))
    mean = jnp.sum(x, _axes(x)) / n
    variance = jnp.sum(jnp.square(x - mean), _axes(x)) / n
    y = (x - mean) * (jax.lax.rsqrt(variance + epsilon) * scale) + bias
    return y, mean, variance


def _replica_forward(
    epsilon: float, x: jax.Array, scale: jax.Array, bias: jax.Array
) -> tuple[Norm, Four]:
    y, mean, variance = _replica_norm(epsilon, x, scale, bias)
    inverse = jax.lax.rsqrt(variance + epsilon)
    return (y, mean, variance), (x, scale, mean, inverse)


def _replica_backward(
    epsilon: float, kept: Four, dys: Norm
) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, scale, mean, inverse = kept
    dy, axes = dys[0], _axes(x)
    n = max(1, prod(x.shape[:-1]))
    normed = (x - mean) * inverse
    d_bias, d_scale = jnp.sum(dy, axes), jnp.sum(dy * normed, axes)
    dx = (dy - d_bias / n - normed * (d_scale / n)) * (scale * inverse)
    return dx, d_scale, d_bias


_replica_norm.defvjp(_replica_forward, _replica_backward)


def moving_average(old: jax.Array, new: jax.Array, *, momentum: float) -> jax.Array:
    return momentum * old + (1 - momentum) * new
