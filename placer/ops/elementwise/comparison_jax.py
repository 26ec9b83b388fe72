"""greater, less, equal, where, maximum, minimum and clip."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ..common.gradient_jax import Backward, WithBackward, with_gradient
from .broadcasting_jax import sum_to
from .ordered_jax import compare

greater = jnp.greater
less = jnp.less
equal = jnp.equal


@with_gradient
def where(condition: jax.Array, a: jax.Array, b: jax.Array) -> WithBackward:
    def backward(dy: jax.Array) -> tuple[None, jax.Array, jax.Array]:
        # da = dy where the condition is true, db = dy elsewhere
        holds = condition != 0
        da, db = jnp.where(holds, dy, 0), jnp.where(holds, 0, dy)
        return None, sum_to(da, a.shape), sum_to(db, b.shape)

    return jnp.where(condition != 0, a, b), backward


@with_gradient
def maximum(a: jax.Array, b: jax.Array) -> WithBackward:
    return jnp.maximum(a, b), _extremum_backward(a, b, compare(a, b))


@with_gradient
def minimum(a: jax.Array, b: jax.Array) -> WithBackward:
    return jnp.minimum(a, b), _extremum_backward(a, b, compare(b, a))


def _extremum_backward(a: jax.Array, b: jax.Array, selected: jax.Array) -> Backward:
    """Return the backward, given 1 where a is selected, -1 for b, and 0 for ties."""

    def backward(dy: jax.Array) -> tuple[jax.Array, jax.Array]:
        tie = jnp.where(selected == 0, dy / 2, 0)
        da, db = jnp.where(selected > 0, dy, tie), jnp.where(selected < 0, dy, tie)
        return sum_to(da, a.shape), sum_to(db, b.shape)

    return backward


@with_gradient
def clip(
    x: jax.Array, *, min: float | None = None, max: float | None = None
) -> WithBackward:
    y, within = x, ~jnp.isnan(x)
    if min is not None:
        y, within = jnp.maximum(y, min), within & (x >= min)
    if max is not None:
        y, within = jnp.minimum(y, max), within & (x <= max)
    return y, lambda dy: jnp.where(within, dy, 0)
