"""reshape, flatten, concat and tile."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import jax
import jax.numpy as jnp

from ..common.gradient_jax import WithBackward, with_gradient


def reshape(x: jax.Array, *, shape: Sequence[int | str]) -> jax.Array:
    return jnp.reshape(x, _sizes(x.shape, shape))


def _sizes(old: tuple[int, ...], shape: Sequence[int | str]) -> tuple[int, ...]:
    """Return `shape` as ints, with `batch` or -1 inferred from the shape `old`."""
    if "batch" in shape and -1 in shape:
        rest = prod(old[1:]) // prod(int(d) for d in shape if d not in ("batch", -1))
        return (old[0], *(rest if d == -1 else int(d) for d in shape[1:]))
    return tuple(-1 if d == "batch" else int(d) for d in shape)


def concat(*xs: jax.Array, axis: int = -1) -> jax.Array:
    return jnp.concatenate(xs, axis=axis)


def flatten(x: jax.Array, *, axis: int = 1) -> jax.Array:
    first = axis if axis >= 0 else axis + x.ndim
    return jnp.reshape(x, (*x.shape[:first], prod(x.shape[first:])))


@with_gradient
def tile(x: jax.Array, *, repeats: Sequence[int]) -> WithBackward:
    def backward(dy: jax.Array) -> jax.Array:
        # dx is the sum of dy over all copies of x
        copies = (1,) * (x.ndim - len(repeats)) + tuple(repeats)
        sizes = (1,) * (len(repeats) - x.ndim) + x.shape
        separated = dy.reshape(
            [dim for pair in zip(copies, sizes, strict=True) for dim in pair]
        )
        total = jnp.sum(separated, axis=tuple(range(0, 2 * len(sizes), 2)))
        return total.reshape(x.shape)

    return jnp.tile(x, tuple(repeats)), backward
