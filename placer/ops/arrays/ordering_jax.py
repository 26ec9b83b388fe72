"""top_k, argmax and argmin."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ..common.gradient_jax import Backward, with_gradient
from .index_jax import index_along, scatter_gradient

Pair = tuple[jax.Array, jax.Array]


@with_gradient
def top_k(x: jax.Array, *, k: int) -> tuple[Pair, Backward]:
    values, indices = jax.lax.top_k(x, k)

    def backward(dys: Pair) -> jax.Array:
        place = index_along(x.ndim - 1, x.shape, indices)
        return scatter_gradient(x.shape, place, dys[0])

    return (values, indices), backward


def argmax(x: jax.Array, *, axis: int = -1, keepdims: bool = False) -> jax.Array:
    index = jax.lax.argmax(x, axis % x.ndim, jnp.int32)
    return jnp.expand_dims(index, axis) if keepdims else index


def argmin(x: jax.Array, *, axis: int = -1, keepdims: bool = False) -> jax.Array:
    index = jax.lax.argmin(x, axis % x.ndim, jnp.int32)
    return jnp.expand_dims(index, axis) if keepdims else index
