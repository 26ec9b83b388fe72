"""Random bits by threefry: a key for each row, then bits for the row's elements."""

from __future__ import annotations

from math import prod

import jax
import jax.numpy as jnp

from ..common.gradient_jax import WithBackward, with_gradient
from ..common.threefry_jax import threefry2x32


@with_gradient
def drop(
    x: jax.Array, position: jax.Array, *, rate: float, stream: int
) -> WithBackward:
    # An element is kept if its random word is at least rate · 2³²
    words = random_bits(position, stream, prod(x.shape[1:]))
    threshold = min(round(rate * 2**32), 2**32 - 1)  # 2³² does not fit in uint32
    kept = (words >= jnp.uint32(threshold)).reshape(x.shape)
    return (
        jnp.where(kept, x / (1 - rate), 0),
        lambda dy: (jnp.where(kept, dy / (1 - rate), 0), None),
    )


def row_keys(position: jax.Array, stream: int) -> tuple[jax.Array, jax.Array]:
    """Return two random words for each row, derived from its position in a stream."""
    word = jnp.uint32(stream & 0xFFFFFFFF), jnp.uint32(stream >> 32)
    return threefry2x32(word, (position[:, 0], position[:, 1]))


def random_bits(position: jax.Array, stream: int, count: int) -> jax.Array:
    """Return `count` random words for each row: uint32, [rows, count].

    They depend only on the stream and on `position`, uint32[rows, 2]: the step and the
    row's index in the global batch.
    """
    first, second = row_keys(position, stream)
    pairs = jnp.arange((count + 1) // 2, dtype=jnp.uint32)[None, :]
    key = first[:, None], second[:, None]
    words = jnp.stack(threefry2x32(key, (jnp.zeros_like(pairs), pairs)), axis=-1)
    return words.reshape(words.shape[0], 2 * pairs.shape[1])[:, :count]


def step_key_of(stream: int, step: jax.Array | int) -> jax.Array:
    """Return the JAX key of a step in a stream."""
    words = jnp.array([stream & 0xFFFFFFFF, stream >> 32], jnp.uint32)
    return jax.random.fold_in(
        jax.random.wrap_key_data(words, impl="threefry2x32"), step
    )


def jax_keys(position: jax.Array, stream: int) -> jax.Array:
    """Return a JAX key for each row, derived from the stream, the step and the row."""
    bits = jnp.stack(row_keys(position, stream), axis=-1)
    keys: jax.Array = jax.random.wrap_key_data(bits, impl="threefry2x32")
    return keys
