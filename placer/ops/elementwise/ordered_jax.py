"""Which of two values is the greater one, in a byte: what slopes at kinks come from."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def order(a: jax.Array, b: jax.Array | int) -> jax.Array:
    """int8: 1 where a is greater, -1 where b is, 0 where they are equal or one is NaN."""
    return (a > b).astype(jnp.int8) - (a < b).astype(jnp.int8)
