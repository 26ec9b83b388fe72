"""square, sqrt, pow, exp and log."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ..common.gradient_jax import WithBackward, with_gradient


@with_gradient
def square(x: jax.Array) -> WithBackward:
    # y' = 2x
    return x * x, lambda dy: 2 * x * dy


@with_gradient
def sqrt(x: jax.Array) -> WithBackward:
    y = jnp.sqrt(x)
    # y' = 1 / (2 √x) = 1 / (2y)
    return y, lambda dy: dy / (y + y)


exp = jnp.exp
log = jnp.log


def pow(x: jax.Array, *, exponent: float) -> jax.Array:
    if exponent == 0:
        return jnp.ones_like(x)
    return x if exponent == 1 else _pow(x, exponent=exponent)


def _power(x: jax.Array, exponent: float) -> jax.Array:
    """Return x to a power, by multiplication if the exponent is an integer."""
    if float(exponent).is_integer():
        return jax.lax.integer_pow(x, int(exponent))
    return jnp.power(x, exponent)


@with_gradient
def _pow(x: jax.Array, *, exponent: float) -> WithBackward:
    # y' = exponent · x^(exponent - 1)
    return (
        _power(x, exponent),
        lambda dy: dy * (exponent * _power(x, exponent - 1)),
    )
