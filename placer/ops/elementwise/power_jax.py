"""square, sqrt, pow, exp and log."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from placer.ops.common.gradient_jax import (
    WithBackward,
    from_operand,
    from_result,
    with_gradient,
)

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
    return x if exponent == 1 else _pow(x, exponent=exponent)


def _power(x: jax.Array, exponent: float) -> jax.Array:
    """Return x to a power, by multiplication if the exponent is integral."""
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
