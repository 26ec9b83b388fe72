"""What the compiler puts in. Sums are made in the order of the operands (R2)."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

import jax
import jax.numpy as jnp

from placer.layouts.conversions import Share
from placer.ops.common.precision_jax import wide


def accumulate(*xs: jax.Array) -> jax.Array:
    return reduce(add, map(wide, xs)).astype(xs[0].dtype)


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


def split_rows(x: jax.Array, *, own: tuple[int, ...], parts: int) -> jax.Array:
    ranges = Share(own, parts).ranges(x.shape[0])
    if len(ranges) == 1:
        ((low, high),) = ranges
        return x[low:high]
    return jnp.concatenate([x[:0], *(x[low:high] for low, high in ranges)])


def pad_rows(
    x: jax.Array, *, own: tuple[int, ...], parts: int, count: int
) -> jax.Array:
    share = Share(own, parts)
    if x.shape[0] != (size := share.size(count)):
        raise ValueError(
            f"parts {own} of {parts} of {count} rows have {size}, not {len(x)}"
        )
    out, at = jnp.zeros((count, *x.shape[1:]), x.dtype), 0
    for low, high in share.ranges(count):
        out = out.at[low:high].set(x[at : at + high - low])
        at += high - low
    return out
