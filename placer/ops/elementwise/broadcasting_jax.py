"""Gradients of broadcasting, and division by a constant.

The gradient of broadcasting is a sum. `jnp.sum` adds half floats in float32 and rounds
once. The gradient that JAX derives from a broadcast adds them in their own dtype.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from ..common.gradient_jax import WithBackward, with_gradient


def sum_to(dy: jax.Array, shape: Sequence[int]) -> jax.Array:
    """Return the cotangent of a value of `shape` that was broadcast to dy's shape."""
    added = dy.ndim - len(shape)
    stretched = (
        axis
        for axis, size in enumerate(shape, start=added)
        if size == 1 and dy.shape[axis] != 1
    )
    axes = (*range(added), *stretched)
    return jnp.reshape(jnp.sum(dy, axis=axes), shape) if axes else dy


@with_gradient
def broadcast_add(a: jax.Array, b: jax.Array) -> WithBackward:
    """Return a + b, broadcast to each other."""
    return a + b, lambda dy: (sum_to(dy, a.shape), sum_to(dy, b.shape))


def divide(x: jax.Array, n: int | jax.Array) -> jax.Array:
    """Return x / n in the dtype of x. A Python int n needs no residual."""
    if isinstance(n, jax.Array):
        return x / n.astype(x.dtype)
    return _divide(x, n=float(n))


@with_gradient
def _divide(x: jax.Array, *, n: float) -> WithBackward:
    return x / n, lambda dy: dy / n
