"""What sums are made in: a half float would lose what is small beside the rest."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def wide(x: jax.Array) -> jax.Array:
    """x as float32 where it is a half float, else as it is."""
    return x.astype(jnp.float32) if x.dtype.itemsize < 4 else x
