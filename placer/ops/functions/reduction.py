"""reduce_sum and reduce_mean."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import jax
import jax.numpy as jnp

from placer.ops.functions.broadcast import divide

Axes = int | Sequence[int] | None


def _axes(axis: Axes, rank: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(rank))
    return tuple(a % rank for a in ([axis] if isinstance(axis, int) else axis))


def reduce_sum(x: jax.Array, *, axis: Axes = None, keepdims: bool = False) -> jax.Array:
    return jnp.sum(x, axis=_axes(axis, x.ndim), keepdims=keepdims)


def reduce_mean(
    x: jax.Array,
    *,
    axis: Axes = None,
    keepdims: bool = False,
    count: int | jax.Array | None = None,
) -> jax.Array:
    """The mean; with `count`, of a batch of that many rows of which x holds some."""
    axes = _axes(axis, x.ndim)
    total = jnp.sum(x, axis=axes, keepdims=keepdims)
    if count is None:
        return divide(total, prod(x.shape[a] for a in axes))
    return divide(total, count * prod(x.shape[a] for a in axes if a != 0))
