"""Sums of half floats (float16, bfloat16) in float32, which loses no small terms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from placer.types import is_half_float


def widen(x: jax.Array) -> jax.Array:
    """Convert half floats to float32; return other arrays unchanged."""
    return x.astype(jnp.float32) if is_half_float(x.dtype) else x


def scatter_add(
    shape: Sequence[int], place: Any, dy: jax.Array, mode: str | None = None
) -> jax.Array:
    """Add `dy` to zeros of `shape` at the index `place`; the result has dy's dtype.

    Half floats that go to the same element are summed in float32 and rounded once.
    """
    zeros = jnp.zeros(shape, widen(dy).dtype)
    return zeros.at[place].add(widen(dy), mode=mode).astype(dy.dtype)
