"""top_k, argmax and argmin."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from placer.ops.arrays.index_jax import index_along, scatter_gradient
from placer.ops.common.gradient_jax import differentiable

Pair = tuple[jax.Array, jax.Array]


def top_k(x: jax.Array, *, k: int) -> Pair:
    return _top_k(k, x.shape, x)


def _top_k_forward(
    k: int, shape: tuple[int, ...], x: jax.Array
) -> tuple[Pair, jax.Array]:
    values, indices = jax.lax.top_k(x, k)
    return (values, indices), indices


def _top_k_backward(
    k: int, shape: tuple[int, ...], indices: jax.Array, dys: Pair
) -> tuple[jax.Array]:
    place = index_along(len(shape) - 1, shape, indices)
    return (scatter_gradient(shape, place, dys[0]),)


_top_k = differentiable(_top_k_forward, _top_k_backward, static=2)


def argmax(x: jax.Array, *, axis: int = -1, keepdims: bool = False) -> jax.Array:
    index = jax.lax.argmax(x, axis % x.ndim, jnp.int32)
    return jnp.expand_dims(index, axis) if keepdims else index


def argmin(x: jax.Array, *, axis: int = -1, keepdims: bool = False) -> jax.Array:
    index = jax.lax.argmin(x, axis % x.ndim, jnp.int32)
    return jnp.expand_dims(index, axis) if keepdims else index
