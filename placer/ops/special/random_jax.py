"""Random bits by threefry: a key for each row, and from it those of its elements."""

from __future__ import annotations

from functools import partial
from math import prod

import jax
import jax.numpy as jnp

from placer.ops.common.threefry_jax import threefry2x32


def drop(x: jax.Array, position: jax.Array, *, rate: float, stream: int) -> jax.Array:
    return _masked(rate, x, _kept(x.shape, position, rate, stream))


def bits(position: jax.Array, stream: int, count: int) -> jax.Array:
    """So many random words for each row: uint32, [rows, count]."""
    word = jnp.uint32(stream & 0xFFFFFFFF), jnp.uint32(stream >> 32)
    first, second = threefry2x32(word, (position[:, 0], position[:, 1]))
    pairs = jnp.arange((count + 1) // 2, dtype=jnp.uint32)[None, :]
    key = first[:, None], second[:, None]
    found = jnp.stack(threefry2x32(key, (jnp.zeros_like(pairs), pairs)), axis=-1)
    return found.reshape(found.shape[0], 2 * pairs.shape[1])[:, :count]


def _kept(
    shape: tuple[int, ...], position: jax.Array, rate: float, stream: int
) -> jax.Array:
    """Which elements stay: bool, of the shape of x."""
    flat = bits(position, stream, prod(shape[1:]))
    least = min(round(rate * 2**32), 2**32 - 1)  # a rate next to 1 drops the others
    kept: jax.Array = flat >= jnp.uint32(least)
    return kept.reshape(shape)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _masked(rate: float, x: jax.Array, kept: jax.Array) -> jax.Array:
    return jnp.where(kept, x / (1 - rate), 0)


def _forward(rate: float, x: jax.Array, kept: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _masked(rate, x, kept), kept


def _backward(rate: float, kept: jax.Array, dy: jax.Array) -> tuple[jax.Array, None]:
    return jnp.where(kept, dy / (1 - rate), 0), None


_masked.defvjp(_forward, _backward)
