"""cast."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def cast(x: jax.Array, *, dtype: str) -> jax.Array:
    """Convert x to `dtype`.

    Raises ValueError for float64 without `precision: float64`, which JAX would turn
    into float32 silently.
    """
    if dtype == "float64" and jnp.result_type(float) != dtype:
        raise ValueError("cast to float64 needs a spec of precision: float64")
    return x.astype(dtype)
