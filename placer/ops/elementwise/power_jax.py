"""square, sqrt, pow, exp and log."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from placer.ops.common.gradient_jax import differentiable, from_operand, from_result

# y' = 2x
square = from_operand(lambda x: x * x, lambda x, dy: 2 * x * dy)
# y' = 1 / (2 √x) = 1 / (2y)
sqrt = from_result(jnp.sqrt, lambda y, dy: dy / (y + y))


def exp(x: jax.Array) -> jax.Array:
    return jnp.exp(x)


def log(x: jax.Array) -> jax.Array:
    return jnp.log(x)


def pow(x: jax.Array, *, exponent: float) -> jax.Array:
    if exponent == 0:
        return jnp.ones_like(x)
    return x if exponent == 1 else _pow(exponent, x)


def _power(x: jax.Array, exponent: float) -> jax.Array:
    """Return x to a power, by multiplication if the exponent is integral."""
    if float(exponent).is_integer():
        return jax.lax.integer_pow(x, int(exponent))
    return jnp.power(x, exponent)


def _pow_forward(exponent: float, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _power(x, exponent), x


def _pow_backward(exponent: float, x: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    # y' = exponent · x^(exponent - 1)
    return (dy * (exponent * _power(x, exponent - 1)),)


_pow = differentiable(_pow_forward, _pow_backward, static=1)
