"""fc and matmul. The backward of a matrix product needs only the operands."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ..common.gradient_jax import WithBackward, with_gradient
from ..elementwise.broadcasting_jax import sum_to
from .weighted_jax import add_bias_and_activate


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


@with_gradient
def matmul(
    a: jax.Array, b: jax.Array, *, transpose_a: bool = False, transpose_b: bool = False
) -> WithBackward:
    def backward(dy: jax.Array) -> tuple[jax.Array, jax.Array]:
        # y = a · b, so da = dy · bᵀ and db = aᵀ · dy, summed over broadcast dimensions
        da = jnp.matmul(dy, _flip(b, not transpose_b))
        db = jnp.matmul(_flip(a, not transpose_a), dy)
        return (
            sum_to(_flip(da, transpose_a), a.shape),
            sum_to(_flip(db, transpose_b), b.shape),
        )

    return jnp.matmul(_flip(a, transpose_a), _flip(b, transpose_b)), backward


def _flip(x: jax.Array, transpose: bool) -> jax.Array:
    return jnp.swapaxes(x, -1, -2) if transpose else x
