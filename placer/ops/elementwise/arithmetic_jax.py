"""add, sub, mul, div, scale, negative and abs."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ..common.gradient_jax import WithBackward, with_gradient
from .broadcasting_jax import broadcast_add, sum_to
from .ordered_jax import compare

add = broadcast_add


def sub(a: jax.Array, b: jax.Array) -> jax.Array:
    return broadcast_add(a, -b)


@with_gradient
def mul(a: jax.Array, b: jax.Array) -> WithBackward:
    # da = dy · b, db = dy · a, each summed over the dimensions that were broadcast
    return a * b, lambda dy: (sum_to(dy * b, a.shape), sum_to(dy * a, b.shape))


@with_gradient
def div(a: jax.Array, b: jax.Array) -> WithBackward:
    def backward(dy: jax.Array) -> tuple[jax.Array, jax.Array]:
        # da = dy / b, db = -dy · a / b² = -da · (a / b); b² could overflow
        da = dy / b
        return sum_to(da, a.shape), sum_to(-da * (a / b), b.shape)

    return a / b, backward


@with_gradient
def scale(x: jax.Array, *, factor: float, bias: float = 0.0) -> WithBackward:
    scaled = x * factor
    return scaled + bias if bias else scaled, lambda dy: dy * factor


def negative(x: jax.Array) -> jax.Array:
    return -x


@with_gradient
def abs(x: jax.Array) -> WithBackward:
    sign = compare(x, 0)
    # dx = dy · sign(x)
    return jnp.abs(x), lambda dy: dy * sign.astype(dy.dtype)
