"""reduce_sum, reduce_mean, reduce_max and reduce_min."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import jax
import jax.numpy as jnp
import numpy as np

from ..common.gradient_jax import WithBackward, with_gradient
from ..common.precision_jax import widen
from ..elementwise.broadcasting_jax import divide

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
    """Return the mean.

    `count` is the number of rows of the global batch if x holds only some of them.
    """
    axes = _axes(axis, x.ndim)
    # Half floats are divided before rounding, because the sum may overflow.
    total = jnp.sum(widen(x), axis=axes, keepdims=keepdims)
    rows = 1 if 0 not in axes else x.shape[0] if count is None else count
    n = rows * prod(x.shape[a] for a in axes if a != 0)
    return divide(total, n).astype(x.dtype)


Reduce = Callable[..., jax.Array]


def _extremum(reduce: Reduce, arg: Reduce) -> Callable[..., jax.Array]:
    """Return the function of an op, given JAX's functions for extremum and index."""

    @with_gradient
    def extremum(
        x: jax.Array, *, axis: Axes = None, keepdims: bool = False
    ) -> WithBackward:
        axes = _axes(axis, x.ndim)
        y = reduce(x, axis=axes, keepdims=keepdims)
        kept = y if keepdims else jnp.expand_dims(y, axes)
        mask = x == kept
        # XLA may compute x twice, for the extremum and for the comparison, and round it
        # differently. Then no element equals the extremum. In this case an argmax or
        # argmin gives the mask, because it reads x only once.
        has_extremum = jnp.any(mask, axis=axes, keepdims=True) | jnp.isnan(kept)
        mask = jax.lax.cond(
            jnp.all(has_extremum),
            lambda x, mask, has_extremum: mask,
            lambda x, mask, has_extremum: (
                mask | (_first_mask(arg, axes, x) & ~has_extremum)
            ),
            *(x, mask, has_extremum),
        )

        def backward(dy: jax.Array) -> jax.Array:
            # dx = dy / n where x = y, else 0, where n counts the elements equal to y
            wide = widen(dy if keepdims else jnp.expand_dims(dy, axes))
            count = jnp.sum(mask, axis=axes, keepdims=True, dtype=wide.dtype)
            # If y is NaN, no element equals it: the count is 0, and all of dx is NaN
            share = (wide / count).astype(dy.dtype)
            return jnp.where(mask, share, share * 0)

        return y, backward

    return extremum


reduce_max = _extremum(jnp.max, jnp.argmax)
reduce_min = _extremum(jnp.min, jnp.argmin)


def _first_mask(arg: Reduce, axes: tuple[int, ...], x: jax.Array) -> jax.Array:
    """Return a mask of x's shape: true at the first extremum along the axes."""
    order = (*(a for a in range(x.ndim) if a not in axes), *axes)
    permuted = x.transpose(order)
    outer = permuted.shape[: x.ndim - len(axes)]
    flat = permuted.reshape(*outer, prod(permuted.shape[len(outer) :]))
    mask = jnp.arange(flat.shape[-1]) == arg(flat, axis=-1, keepdims=True)
    return mask.reshape(permuted.shape).transpose(np.argsort(order))
