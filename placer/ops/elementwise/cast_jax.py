"""cast."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def cast(x: jax.Array, *, dtype: str) -> jax.Array:
    """Convert x to `dtype`.

    Raises ValueError for float64 without `precision: float64`; JAX would silently use
    float32.
    """
    if dtype == "float64" and jnp.result_type(float) != dtype:
        raise ValueError("cast to float64 needs precision: float64 in the spec")
    return x.astype(dtype)
