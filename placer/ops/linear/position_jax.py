"""position_embedding and positional_encoding."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def position_embedding(x: jax.Array, table: jax.Array) -> jax.Array:
    return x + table


def positional_encoding(x: jax.Array, *, base: float = 10000.0) -> jax.Array:
    _, length, size = x.shape
    pairs = np.arange(0, size, 2)
    angles = np.arange(length)[:, None] * float(base) ** -(pairs / size)
    waves = np.stack([np.sin(angles), np.cos(angles)], axis=-1)
    encoding = np.reshape(waves, (length, 2 * len(pairs)))[:, :size]
    return x + jnp.asarray(encoding, x.dtype)
