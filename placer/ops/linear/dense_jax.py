"""fc and matmul. A product needs only its operands for the backward."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from placer.ops.common.gradient_jax import differentiable
from placer.ops.elementwise.broadcasting_jax import sum_to
from placer.ops.linear.weighted_jax import add_bias_and_activate

Pair = tuple[jax.Array, jax.Array]


def fc(
    x: jax.Array,
    w: jax.Array,
    b: jax.Array | None = None,
    *,
    activation: str = "none",
    transpose_w: bool = False,
) -> jax.Array:
    contracted = ((x.ndim - 1,), (1 if transpose_w else 0,))
    y = jax.lax.dot_general(x, w, (contracted, ((), ())))
    return add_bias_and_activate(y, b, activation)


def matmul(
    a: jax.Array, b: jax.Array, *, transpose_a: bool = False, transpose_b: bool = False
) -> jax.Array:
    return _matmul(transpose_a, transpose_b, a, b)


def _matmul_forward(
    transpose_a: bool, transpose_b: bool, a: jax.Array, b: jax.Array
) -> tuple[jax.Array, Pair]:
    return jnp.matmul(_flip(a, transpose_a), _flip(b, transpose_b)), (a, b)


def _matmul_backward(
    transpose_a: bool, transpose_b: bool, saved: Pair, dy: jax.Array
) -> Pair:
    # For y = a · b: da = dy · bᵀ and db = aᵀ · dy, summed over broadcast dimensions
    a, b = saved
    da = jnp.matmul(dy, _flip(b, not transpose_b))
    db = jnp.matmul(_flip(a, not transpose_a), dy)
    return (
        sum_to(_flip(da, transpose_a), a.shape),
        sum_to(_flip(db, transpose_b), b.shape),
    )


_matmul = differentiable(_matmul_forward, _matmul_backward, static=2)


def _flip(x: jax.Array, transpose: bool) -> jax.Array:
    return jnp.swapaxes(x, -1, -2) if transpose else x
