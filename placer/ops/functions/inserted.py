"""What the compiler puts in. Sums are made in the order of the operands (R2)."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

import jax
import jax.numpy as jnp

from placer.graph.rows import part
from placer.ops.functions.precision import wide


def accumulate(*xs: jax.Array) -> jax.Array:
    return reduce(add, xs)


def sum_of_squares(*xs: jax.Array) -> jax.Array:
    return reduce(add, (jnp.sum(jnp.square(wide(x))) for x in xs))


def clip_scale(*xs: jax.Array, max_norm: float) -> jax.Array:
    return jnp.minimum(1, max_norm / jnp.sqrt(reduce(add, xs)))


def clip_value(x: jax.Array, *, limit: float) -> jax.Array:
    return jnp.clip(x, -limit, limit)


def trust_ratio(
    *xs: jax.Array, coefficient: float = 1.0, eps: float = 0.0
) -> jax.Array:
    half = len(xs) // 2
    length, step = (jnp.sqrt(reduce(add, part)) for part in (xs[:half], xs[half:]))
    still = ((length == 0) | (step == 0)) & ~jnp.isnan(length + step)
    ratio = coefficient * length / (jnp.where(still, 1, step) + eps)
    return jnp.where(still, jnp.ones_like(ratio), ratio)


def hold(x: jax.Array, *after: jax.Array) -> jax.Array:
    barrier: Any = jax.lax.optimization_barrier  # which has no types
    kept: jax.Array = barrier((x, *after))[0]
    return kept


@jax.custom_vjp
def if_training(training: jax.Array, evaluation: jax.Array) -> jax.Array:
    return training


def _if_forward(training: jax.Array, evaluation: jax.Array) -> tuple[jax.Array, None]:
    return training, None


def _if_backward(kept: None, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    return dy, jnp.zeros_like(dy)


if_training.defvjp(_if_forward, _if_backward)


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
