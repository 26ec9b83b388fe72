"""square, sqrt, pow, exp and log."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

Pair = tuple[jax.Array, jax.Array]


@jax.custom_vjp
def square(x: jax.Array) -> jax.Array:
    return x * x


def _square_forward(x: jax.Array) -> Pair:
    return x * x, x


def _square_backward(x: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    # y' = 2x
    return (2 * x * dy,)


square.defvjp(_square_forward, _square_backward)


@jax.custom_vjp
def sqrt(x: jax.Array) -> jax.Array:
    return jnp.sqrt(x)


def _sqrt_forward(x: jax.Array) -> Pair:
    y = jnp.sqrt(x)
    return y, y


def _sqrt_backward(y: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    # y' = 1 / (2 √x) = 1 / (2y)
    return (dy / (y + y),)


sqrt.defvjp(_sqrt_forward, _sqrt_backward)


def pow(x: jax.Array, *, exponent: float) -> jax.Array:
    if exponent == 0:
        return jnp.ones_like(x)
    return x if exponent == 1 else _pow(exponent, x)


def _power(x: jax.Array, exponent: float) -> jax.Array:
    """Return x to a power, by multiplication if the exponent is integral."""
    if float(exponent).is_integer():
        return jax.lax.integer_pow(x, int(exponent))
    return jnp.power(x, exponent)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _pow(exponent: float, x: jax.Array) -> jax.Array:
    return _power(x, exponent)


def _pow_forward(exponent: float, x: jax.Array) -> Pair:
    return _power(x, exponent), x


def _pow_backward(exponent: float, x: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    # y' = exponent · x^(exponent - 1)
    return (dy * (exponent * _power(x, exponent - 1)),)


_pow.defvjp(_pow_forward, _pow_backward)


@jax.custom_vjp
def exp(x: jax.Array) -> jax.Array:
    return jnp.exp(x)


def _exp_forward(x: jax.Array) -> Pair:
    y = jnp.exp(x)
    return y, y


def _exp_backward(y: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    # y' = exp(x) = y
    return (dy * y,)


exp.defvjp(_exp_forward, _exp_backward)


@jax.custom_vjp
def log(x: jax.Array) -> jax.Array:
    return jnp.log(x)


def _log_forward(x: jax.Array) -> Pair:
    return jnp.log(x), x


def _log_backward(x: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    # y' = 1 / x
    return (dy / x,)


log.defvjp(_log_forward, _log_backward)
