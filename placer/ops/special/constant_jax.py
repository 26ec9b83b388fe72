"""constant."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp


def constant(
    *, value: bool | int | float, dtype: str = "float32", shape: Sequence[int] = ()
) -> jax.Array:
    return jnp.full(tuple(shape), value, dtype)
