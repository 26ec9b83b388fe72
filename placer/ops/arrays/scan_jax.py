"""cumsum. Its backward is a cumsum in the opposite direction."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from placer.ops.common.gradient_jax import linear
from placer.ops.common.precision_jax import widen


def cumsum(
    x: jax.Array, *, axis: int = -1, reverse: bool = False, exclusive: bool = False
) -> jax.Array:
    return _cumsum(axis % x.ndim, reverse, exclusive, x)


def _sums(axis: int, reverse: bool, exclusive: bool, x: jax.Array) -> jax.Array:
    if exclusive:
        x = _shift(x, axis, reverse)
    if jnp.issubdtype(x.dtype, jnp.floating):
        return jax.lax.cumsum(widen(x), axis, reverse).astype(x.dtype)
    return jax.lax.cumsum(x, axis, reverse)


def _shift(x: jax.Array, axis: int, reverse: bool) -> jax.Array:
    """Shift the elements by one, with a 0 where the sums start.

    An exclusive sum computed as the inclusive one minus its element would round twice.
    """
    edges = [(0, 0, 0)] * x.ndim
    edges[axis] = (-1, 1, 0) if reverse else (1, -1, 0)
    return jax.lax.pad(x, jnp.zeros((), x.dtype), edges)


# y[i] = Σ x[j] over j ≤ i, so dx[j] = Σ dy[i] over i ≥ j
_cumsum = linear(
    _sums,
    lambda axis, reverse, exclusive, dy: _sums(axis, not reverse, exclusive, dy),
    static=3,
)
