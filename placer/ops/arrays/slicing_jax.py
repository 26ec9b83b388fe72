"""split and slice."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from itertools import accumulate

import jax
import jax.numpy as jnp

Parts = tuple[jax.Array, ...]
Bound = int | Sequence[int] | None


def split(x: jax.Array, *, sections: int | Sequence[int], axis: int = -1) -> Parts:
    at = sections if isinstance(sections, int) else list(accumulate(sections))[:-1]
    return tuple(jnp.split(x, at, axis))


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
    index = [builtins.slice(None)] * x.ndim
    for at, *bound in zip(axes, *bounds, strict=True):
        index[at] = builtins.slice(*bound)
    return x[tuple(index)]


def _per_axis(bound: Bound, count: int) -> Sequence[int | None]:
    return (bound,) * count if bound is None or isinstance(bound, int) else bound
