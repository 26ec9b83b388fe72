"""Class numbers in a dtype that holds every one of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def class_numbers(label: jax.Array) -> jax.Array:
    """Labels in at least 32 bits: as int8, classes beyond 127 have no number, and one
    that is compared with a label would wrap around."""
    return label.astype(jnp.int32) if label.dtype.itemsize < 4 else label
