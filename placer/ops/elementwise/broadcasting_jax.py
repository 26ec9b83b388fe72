"""Addition and numpy's broadcasting, whose gradients are sums, and division by a fixed
number. A sum of halves is made in float32 and rounded once: `jnp.sum` does so, where
what JAX derives from a broadcast adds halves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp

Shapes = tuple[tuple[int, ...], tuple[int, ...]]


def sum_to(dy: jax.Array, shape: Sequence[int]) -> jax.Array:
    """The cotangent of a value of `shape` that was broadcast to the shape of `dy`."""
    extra = dy.ndim - len(shape)
    stretched = (
        axis
        for axis, size in enumerate(shape, start=extra)
        if size == 1 and dy.shape[axis] != 1
    )
    axes = (*range(extra), *stretched)
    return jnp.reshape(jnp.sum(dy, axis=axes), shape) if axes else dy


def plus(a: jax.Array, b: jax.Array) -> jax.Array:
    """a + b, either broadcast to the other's shape."""
    return _plus((a.shape, b.shape), a, b)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _plus(shapes: Shapes, a: jax.Array, b: jax.Array) -> jax.Array:
    return a + b


def _plus_forward(shapes: Shapes, a: jax.Array, b: jax.Array) -> tuple[jax.Array, None]:
    return a + b, None


def _plus_backward(
    shapes: Shapes, kept: None, dy: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return sum_to(dy, shapes[0]), sum_to(dy, shapes[1])


_plus.defvjp(_plus_forward, _plus_backward)


def divide(x: jax.Array, n: int | jax.Array) -> jax.Array:
    """x / n in the dtype of x. A Python int n costs backward no residual."""
    if isinstance(n, jax.Array):
        return x / n.astype(x.dtype)
    return _divide(float(n), x)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _divide(n: float, x: jax.Array) -> jax.Array:
    return x / n


def _divide_forward(n: float, x: jax.Array) -> tuple[jax.Array, None]:
    return x / n, None


def _divide_backward(n: float, kept: None, dy: jax.Array) -> tuple[jax.Array]:
    return (dy / n,)


_divide.defvjp(_divide_forward, _divide_backward)
