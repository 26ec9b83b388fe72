"""cumsum. Its backward is a cumsum in the opposite direction."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ..common.gradient_jax import WithBackward, with_gradient
from ..common.precision_jax import widen


@with_gradient
def cumsum(
    x: jax.Array, *, axis: int = -1, reverse: bool = False, exclusive: bool = False
) -> WithBackward:
    axis %= x.ndim
    # y[i] = Σ x[j] over j ≤ i, so dx[j] = Σ dy[i] over i ≥ j
    return (
        _sums(x, axis, reverse, exclusive),
        lambda dy: _sums(dy, axis, not reverse, exclusive),
    )


def _sums(x: jax.Array, axis: int, reverse: bool, exclusive: bool) -> jax.Array:
    if exclusive:
        x = _shift(x, axis, reverse)
    if jnp.issubdtype(x.dtype, jnp.floating):
        return jax.lax.cumsum(widen(x), axis, reverse).astype(x.dtype)
    return jax.lax.cumsum(x, axis, reverse)


def _shift(x: jax.Array, axis: int, reverse: bool) -> jax.Array:
    """Shift the elements by one, with 0 at the start; sum - x would round twice."""
    edges = [(0, 0, 0)] * x.ndim
    edges[axis] = (-1, 1, 0) if reverse else (1, -1, 0)
    return jax.lax.pad(x, jnp.zeros((), x.dtype), edges)
