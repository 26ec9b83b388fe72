"""add, sub, mul, div, scale, negative, abs."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from placer.ops.elementwise.broadcasting_jax import plus, sum_to
from placer.ops.elementwise.ordered_jax import order

Pair = tuple[jax.Array, jax.Array]


def add(a: jax.Array, b: jax.Array) -> jax.Array:
    return plus(a, b)


def sub(a: jax.Array, b: jax.Array) -> jax.Array:
    return plus(a, -b)


@jax.custom_vjp
def mul(a: jax.Array, b: jax.Array) -> jax.Array:
    return a * b


def _mul_forward(a: jax.Array, b: jax.Array) -> tuple[jax.Array, Pair]:
    return a * b, (a, b)


def _mul_backward(kept: Pair, dy: jax.Array) -> Pair:
    a, b = kept
    return sum_to(dy * b, a.shape), sum_to(dy * a, b.shape)


mul.defvjp(_mul_forward, _mul_backward)


@jax.custom_vjp
def div(a: jax.Array, b: jax.Array) -> jax.Array:
    return a / b


def _div_forward(a: jax.Array, b: jax.Array) -> tuple[jax.Array, Pair]:
    return a / b, (a, b)


def _div_backward(kept: Pair, dy: jax.Array) -> Pair:
    a, b = kept
    da = dy / b
    # a / b first: b² overflows where the quotient does not
    return sum_to(da, a.shape), sum_to(-da * (a / b), b.shape)


div.defvjp(_div_forward, _div_backward)


def scale(x: jax.Array, *, factor: float, bias: float = 0.0) -> jax.Array:
    scaled = _times(factor, x)
    return scaled + bias if bias else scaled


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _times(factor: float, x: jax.Array) -> jax.Array:
    return x * factor


def _times_forward(factor: float, x: jax.Array) -> tuple[jax.Array, None]:
    return x * factor, None


def _times_backward(factor: float, kept: None, dy: jax.Array) -> tuple[jax.Array]:
    return (dy * factor,)


_times.defvjp(_times_forward, _times_backward)


def negative(x: jax.Array) -> jax.Array:
    return -x


@jax.custom_vjp
def abs(x: jax.Array) -> jax.Array:
    return jnp.abs(x)


def _abs_forward(x: jax.Array) -> Pair:
    return jnp.abs(x), order(x, 0)


def _abs_backward(sign: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    return (dy * sign.astype(dy.dtype),)


abs.defvjp(_abs_forward, _abs_backward)
