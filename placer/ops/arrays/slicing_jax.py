"""split and slice."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import jax
import jax.numpy as jnp

Parts = tuple[jax.Array, ...]
Bound = int | Sequence[int] | None


def split(x: jax.Array, *, sections: int | Sequence[int], axis: int = -1) -> Parts:
    size = x.shape[axis]
    if isinstance(sections, int):
        sizes = (size // sections,) * sections
    else:
        sizes = tuple(sections)
    return tuple(jnp.split(x, list(accumulate(sizes))[:-1], axis))


def slice(
    x: jax.Array,
    *,
    axis: int | Sequence[int],
    start: Bound = None,
    stop: Bound = None,
    step: int | Sequence[int] = 1,
) -> jax.Array:
    axes = (axis,) if isinstance(axis, int) else axis
    bounds = (_per_axis(bound, len(axes)) for bound in (start, stop, step))
    for at, first, last, stride in zip(axes, *bounds, strict=True):
        x = _slice_axis(x, at, range(x.shape[at])[first:last:stride])
    return x


def _per_axis(bound: Bound, count: int) -> Sequence[int | None]:
    return (bound,) * count if bound is None or isinstance(bound, int) else bound


def _slice_axis(x: jax.Array, axis: int, indices: range) -> jax.Array:
    """Select indices of one dimension; there is at least one."""
    low, high = min(indices), max(indices)
    part = jax.lax.slice_in_dim(x, low, high + 1, abs(indices.step), axis)
    return part if indices.step > 0 else jnp.flip(part, axis)
