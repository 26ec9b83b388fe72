"""add, sub, mul, div, scale, negative and abs."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from placer.ops.common.gradient_jax import differentiable, linear
from placer.ops.elementwise.broadcasting_jax import broadcast_add, sum_to
from placer.ops.elementwise.ordered_jax import compare

Pair = tuple[jax.Array, jax.Array]


def add(a: jax.Array, b: jax.Array) -> jax.Array:
    return broadcast_add(a, b)


def sub(a: jax.Array, b: jax.Array) -> jax.Array:
    return broadcast_add(a, -b)


def _mul_forward(a: jax.Array, b: jax.Array) -> tuple[jax.Array, Pair]:
    return a * b, (a, b)


def _mul_backward(saved: Pair, dy: jax.Array) -> Pair:
    # da = dy · b, db = dy · a, each summed over the dimensions that were broadcast
    a, b = saved
    return sum_to(dy * b, a.shape), sum_to(dy * a, b.shape)


mul = differentiable(_mul_forward, _mul_backward)


def _div_forward(a: jax.Array, b: jax.Array) -> tuple[jax.Array, Pair]:
    return a / b, (a, b)


def _div_backward(saved: Pair, dy: jax.Array) -> Pair:
    a, b = saved
    # da = dy / b, db = -dy · a / b² = -da · (a / b); b² could overflow
    da = dy / b
    return sum_to(da, a.shape), sum_to(-da * (a / b), b.shape)


div = differentiable(_div_forward, _div_backward)


def scale(x: jax.Array, *, factor: float, bias: float = 0.0) -> jax.Array:
    scaled = _multiply(factor, x)
    return scaled + bias if bias else scaled


_multiply = linear(lambda n, x: x * n, lambda n, dy: dy * n, static=1)


def negative(x: jax.Array) -> jax.Array:
    return -x


abs = differentiable(
    lambda x: (jnp.abs(x), compare(x, 0)),
    # dx = dy · sign(x)
    lambda sign, dy: (dy * sign.astype(dy.dtype),),
    function=jnp.abs,
)
