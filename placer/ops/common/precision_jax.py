"""Accumulates half floats (float16, bfloat16) in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

_HALF_FLOATS = (jnp.dtype("float16"), jnp.dtype("bfloat16"))


def widen(x: jax.Array) -> jax.Array:
    """Convert half floats to float32; return other arrays unchanged."""
    return x.astype(jnp.float32) if x.dtype in _HALF_FLOATS else x


def scatter_add(
    shape: Sequence[int], place: Any, dy: jax.Array, mode: str | None = None
) -> jax.Array:
    """Add `dy` to zeros of `shape` at the index `place`; keep the dtype of `dy`.

    Half floats are summed in float32 and rounded once.
    """
    zeros = jnp.zeros(shape, widen(dy).dtype)
    return zeros.at[place].add(widen(dy), mode=mode).astype(dy.dtype)
