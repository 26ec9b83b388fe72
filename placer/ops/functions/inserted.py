"""What the compiler puts in. Sums are made in the order of the operands (R2)."""

from __future__ import annotations

from functools import reduce
from operator import add

import jax
import jax.numpy as jnp

from placer.graph.rows import part


def accumulate(*xs: jax.Array) -> jax.Array:
    return reduce(add, xs)


def sum_of_squares(*xs: jax.Array) -> jax.Array:
    return reduce(add, (jnp.sum(x * x) for x in xs))


def clip_scale(*xs: jax.Array, max_norm: float) -> jax.Array:
    return jnp.minimum(1, max_norm / jnp.sqrt(reduce(add, xs)))


def split_rows(x: jax.Array, *, index: int, parts: int) -> jax.Array:
    low, high = part(x.shape[0], index, parts)
    return x[low:high]


def pad_rows(x: jax.Array, *, index: int, parts: int, count: int) -> jax.Array:
    low, high = part(count, index, parts)
    if x.shape[0] != high - low:
        raise ValueError(
            f"part {index} of {parts} of {count} rows has {high - low}, not {len(x)}"
        )
    widths = [(low, count - high), *[(0, 0)] * (x.ndim - 1)]
    return jnp.pad(x, widths)
