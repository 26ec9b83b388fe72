"""greater, less, equal, where, maximum, minimum and clip."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from placer.ops.common.gradient_jax import differentiable
from placer.ops.elementwise.broadcasting_jax import Shapes, sum_to
from placer.ops.elementwise.ordered_jax import compare

Pair = tuple[jax.Array, jax.Array]


def greater(a: jax.Array, b: jax.Array) -> jax.Array:
    return a > b


def less(a: jax.Array, b: jax.Array) -> jax.Array:
    return a < b


def equal(a: jax.Array, b: jax.Array) -> jax.Array:
    return a == b


def where(condition: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    return _where((a.shape, b.shape), condition, a, b)


def _where_forward(
    shapes: Shapes, condition: jax.Array, a: jax.Array, b: jax.Array
) -> Pair:
    return jnp.where(condition != 0, a, b), condition


def _where_backward(
    shapes: Shapes, condition: jax.Array, dy: jax.Array
) -> tuple[None, jax.Array, jax.Array]:
    # da = dy where the condition is true, db = dy elsewhere
    holds = condition != 0
    da, db = jnp.where(holds, dy, 0), jnp.where(holds, 0, dy)
    return None, sum_to(da, shapes[0]), sum_to(db, shapes[1])


_where = differentiable(_where_forward, _where_backward, static=1)


def maximum(a: jax.Array, b: jax.Array) -> jax.Array:
    return _maximum((a.shape, b.shape), a, b)


def minimum(a: jax.Array, b: jax.Array) -> jax.Array:
    return _minimum((a.shape, b.shape), a, b)


def _extremum_backward(shapes: Shapes, selected: jax.Array, dy: jax.Array) -> Pair:
    """`selected` is 1 where a was selected, -1 where b was, 0 where they were equal."""
    tie = jnp.where(selected == 0, dy / 2, 0)
    da, db = jnp.where(selected > 0, dy, tie), jnp.where(selected < 0, dy, tie)
    return sum_to(da, shapes[0]), sum_to(db, shapes[1])


_maximum = differentiable(
    lambda _, a, b: (jnp.maximum(a, b), compare(a, b)),
    _extremum_backward,
    1,
    lambda _, a, b: jnp.maximum(a, b),
)
_minimum = differentiable(
    lambda _, a, b: (jnp.minimum(a, b), compare(b, a)),
    _extremum_backward,
    1,
    lambda _, a, b: jnp.minimum(a, b),
)


def clip(
    x: jax.Array, *, min: float | None = None, max: float | None = None
) -> jax.Array:
    return _clip(min, max, x)


def _clip_forward(low: float | None, high: float | None, x: jax.Array) -> Pair:
    y, within = x, ~jnp.isnan(x)
    if low is not None:
        y, within = jnp.maximum(y, low), within & (x >= low)
    if high is not None:
        y, within = jnp.minimum(y, high), within & (x <= high)
    return y, within


def _clip_backward(
    low: float | None, high: float | None, within: jax.Array, dy: jax.Array
) -> tuple[jax.Array]:
    return (jnp.where(within, dy, 0),)


_clip = differentiable(_clip_forward, _clip_backward, static=2)
