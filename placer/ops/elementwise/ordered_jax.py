"""The order of two values as int8: a small residual for piecewise derivatives."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def compare(a: jax.Array, b: jax.Array | int) -> jax.Array:
    """Return int8: 1 where a > b, -1 where a < b, 0 if they are equal or either is NaN."""
    return (a > b).astype(jnp.int8) - (a < b).astype(jnp.int8)
