"""Ops that only the compiler inserts.

Sums add their operands in order, so that runs are reproducible bit for bit.
"""

from __future__ import annotations

from functools import reduce
from operator import add

import jax
import jax.numpy as jnp

from placer.place.layouts.partition import RowShard

from ..common.precision_jax import widen


def accumulate(*xs: jax.Array) -> jax.Array:
    return reduce(add, map(widen, xs)).astype(xs[0].dtype)


def sum_of_squares(*xs: jax.Array) -> jax.Array:
    return reduce(add, (jnp.sum(jnp.square(widen(x))) for x in xs))


def clip_scale(*xs: jax.Array, max_norm: float) -> jax.Array:
    return jnp.minimum(1, max_norm / jnp.sqrt(reduce(add, xs)))


def clip_value(x: jax.Array, *, limit: float) -> jax.Array:
    return jnp.clip(x, -limit, limit)


def clip_part(
    *xs: jax.Array,
    share: float,
    global_norm: float | None = None,
    norm: float | None = None,
    value: float | None = None,
) -> jax.Array | tuple[jax.Array, ...]:
    parts = _clipped_parts(xs, share, global_norm, norm, value)
    return parts if len(parts) > 1 else parts[0]


def _clipped_parts(
    xs: tuple[jax.Array, ...],
    share: float,
    global_norm: float | None,
    norm: float | None,
    value: float | None,
) -> tuple[jax.Array, ...]:
    if share == 0:
        return xs
    if value is not None:
        return tuple(clip_value(x, limit=value * share) for x in xs)
    if norm is not None:
        scales = [clip_scale(sum_of_squares(x), max_norm=norm * share) for x in xs]
    else:
        assert global_norm is not None
        square = sum_of_squares(*xs)
        scales = [clip_scale(square, max_norm=global_norm * share)] * len(xs)
    return tuple(
        (widen(x) * scale).astype(x.dtype) for x, scale in zip(xs, scales, strict=True)
    )


def row_share(x: jax.Array, *, share: float) -> jax.Array:
    return (widen(x) * share).astype(x.dtype)


def row_estimate(x: jax.Array, *, share: float) -> jax.Array:
    return (widen(x) / share).astype(x.dtype) if share else x


def trust_ratio(
    *xs: jax.Array, coefficient: float = 1.0, eps: float = 0.0
) -> jax.Array:
    half = len(xs) // 2
    norm, step = (jnp.sqrt(reduce(add, part)) for part in (xs[:half], xs[half:]))
    # If one norm is 0 and the other NaN, the NaN must stay visible
    is_zero = ((norm == 0) | (step == 0)) & ~jnp.isnan(norm + step)
    ratio = coefficient * norm / (jnp.where(is_zero, 1, step) + eps)
    return jnp.where(is_zero, jnp.ones_like(ratio), ratio)


def hold(x: jax.Array, *after: jax.Array) -> jax.Array:
    held: jax.Array = jax.lax.optimization_barrier((x, *after))[0]
    return held


def if_training(training: jax.Array, evaluation: jax.Array) -> jax.Array:
    return training


def split_rows(x: jax.Array, *, own: tuple[int, ...], parts: int) -> jax.Array:
    ranges = RowShard(own, parts).ranges(x.shape[0])
    if len(ranges) == 1:
        ((low, high),) = ranges
        return x[low:high]
    return jnp.concatenate([x[:0], *(x[low:high] for low, high in ranges)])


def pad_rows(
    x: jax.Array, *, own: tuple[int, ...], parts: int, count: int
) -> jax.Array:
    share = RowShard(own, parts)
    if x.shape[0] != (size := share.num_rows(count)):
        raise ValueError(
            f"parts {own} of {parts} of {count} rows have {size}, not {len(x)}"
        )
    out, start = jnp.zeros((count, *x.shape[1:]), x.dtype), 0
    for low, high in share.ranges(count):
        out = out.at[low:high].set(x[start : start + high - low])
        start += high - low
    return out
