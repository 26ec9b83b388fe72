"""reduce_sum, reduce_mean, reduce_max, reduce_min."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

import jax
import jax.numpy as jnp
import numpy as np

from placer.ops.common.precision_jax import wide
from placer.ops.elementwise.broadcasting_jax import divide

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
    # Halves are divided before they are rounded: the sum may be beyond their range.
    total = jnp.sum(wide(x), axis=axes, keepdims=keepdims)
    if count is None:
        mean = divide(total, prod(x.shape[a] for a in axes))
    else:
        mean = divide(total, count * prod(x.shape[a] for a in axes if a != 0))
    return mean.astype(x.dtype)


def reduce_max(x: jax.Array, *, axis: Axes = None, keepdims: bool = False) -> jax.Array:
    return _extreme("max", _axes(axis, x.ndim), keepdims, x)


def reduce_min(x: jax.Array, *, axis: Axes = None, keepdims: bool = False) -> jax.Array:
    return _extreme("min", _axes(axis, x.ndim), keepdims, x)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _extreme(
    which: str, axes: tuple[int, ...], keepdims: bool, x: jax.Array
) -> jax.Array:
    reduce = jnp.max if which == "max" else jnp.min
    return reduce(x, axis=axes, keepdims=keepdims)


def _extreme_forward(
    which: str, axes: tuple[int, ...], keepdims: bool, x: jax.Array
) -> tuple[jax.Array, jax.Array]:
    kept = _extreme(which, axes, True, x)
    there = x == kept
    # XLA may compute x once for the extreme and once for the comparison, and round it
    # differently: then nothing equals its extreme, and the first is looked for.
    met = jnp.any(there, axis=axes, keepdims=True) | jnp.isnan(kept)
    there = jax.lax.cond(
        jnp.all(met),
        lambda x, there, met: there,
        lambda x, there, met: there | (_first(which, axes, x) & ~met),
        *(x, there, met),
    )
    return kept if keepdims else jnp.squeeze(kept, axes), there


def _first(which: str, axes: tuple[int, ...], x: jax.Array) -> jax.Array:
    """bool, as x: the first extreme along the axes, by one reading of x."""
    order = (*(a for a in range(x.ndim) if a not in axes), *axes)
    turned = x.transpose(order)
    kept = turned.shape[: x.ndim - len(axes)]
    flat = turned.reshape(*kept, prod(turned.shape[len(kept) :]))
    at = (jnp.argmax if which == "max" else jnp.argmin)(flat, axis=-1, keepdims=True)
    there = jnp.arange(flat.shape[-1]) == at
    return there.reshape(turned.shape).transpose(np.argsort(order))


def _extreme_backward(
    which: str,
    axes: tuple[int, ...],
    keepdims: bool,
    there: jax.Array,
    dy: jax.Array,
) -> tuple[jax.Array]:
    each = wide(dy if keepdims else jnp.expand_dims(dy, axes))
    count = jnp.sum(there, axis=axes, keepdims=True, dtype=each.dtype)
    # beside NaN nothing is the extreme: count is 0, and what is elsewhere NaN too
    share = (each / count).astype(dy.dtype)
    return (jnp.where(there, share, share * 0),)


_extreme.defvjp(_extreme_forward, _extreme_backward)
