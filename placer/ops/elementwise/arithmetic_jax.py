"""add, sub, mul, div, scale, negative and abs."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from placer.ops.elementwise.broadcasting_jax import broadcast_add, sum_to
from placer.ops.elementwise.ordered_jax import compare

Pair = tuple[jax.Array, jax.Array]


def add(a: jax.Array, b: jax.Array) -> jax.Array:
    return broadcast_add(a, b)


def sub(a: jax.Array, b: jax.Array) -> jax.Array:
    return broadcast_add(a, -b)


@jax.custom_vjp
def mul(a: jax.Array, b: jax.Array) -> jax.Array:
    return a * b


def _mul_forward(a: jax.Array, b: jax.Array) -> tuple[jax.Array, Pair]:
    return a * b, (a, b)


def _mul_backward(saved: Pair, dy: jax.Array) -> Pair:
    # da = dy · b, db = dy · a, each summed over the dimensions that were broadcast
    a, b = saved
    return sum_to(dy * b, a.shape), sum_to(dy * a, b.shape)


mul.defvjp(_mul_forward, _mul_backward)


@jax.custom_vjp
def div(a: jax.Array, b: jax.Array) -> jax.Array:
    return a / b


def _div_forward(a: jax.Array, b: jax.Array) -> tuple[jax.Array, Pair]:
    return a / b, (a, b)


def _div_backward(saved: Pair, dy: jax.Array) -> Pair:
    a, b = saved
    # da = dy / b, db = -dy · a / b² = -da · (a / b); b² could overflow
    da = dy / b
    return sum_to(da, a.shape), sum_to(-da * (a / b), b.shape)


div.defvjp(_div_forward, _div_backward)


def scale(x: jax.Array, *, factor: float, bias: float = 0.0) -> jax.Array:
    scaled = _multiply(factor, x)
    return scaled + bias if bias else scaled


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _multiply(factor: float, x: jax.Array) -> jax.Array:
    return x * factor


def _multiply_forward(factor: float, x: jax.Array) -> tuple[jax.Array, None]:
    return x * factor, None


def _multiply_backward(factor: float, _: None, dy: jax.Array) -> tuple[jax.Array]:
    return (dy * factor,)


_multiply.defvjp(_multiply_forward, _multiply_backward)


def negative(x: jax.Array) -> jax.Array:
    return -x


@jax.custom_vjp
def abs(x: jax.Array) -> jax.Array:
    return jnp.abs(x)


def _abs_forward(x: jax.Array) -> Pair:
    return jnp.abs(x), compare(x, 0)


def _abs_backward(sign: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    # dx = dy · sign(x)
    return (dy * sign.astype(dy.dtype),)


abs.defvjp(_abs_forward, _abs_backward)
