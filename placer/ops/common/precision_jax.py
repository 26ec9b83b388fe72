"""What sums are made in: a half float would lose what is small beside the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp


def wide(x: jax.Array) -> jax.Array:
    """x as float32 where it is a half float, else as it is."""
    return x.astype(jnp.float32) if x.dtype.itemsize < 4 else x


def put_together(
    shape: Sequence[int], place: Any, dy: jax.Array, mode: str | None = None
) -> jax.Array:
    """Zeros of `shape` with `dy` added at `place`, in the dtype of `dy`; several of it
    that go to one element are added up in float32, and rounded once."""
    zeros = jnp.zeros(shape, wide(dy).dtype)
    return zeros.at[place].add(wide(dy), mode=mode).astype(dy.dtype)
