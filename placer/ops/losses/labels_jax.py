"""Converts labels to a dtype that can represent every class."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def class_numbers(label: jax.Array) -> jax.Array:
    """Convert labels to at least 32 bits.

    In a comparison, classes beyond 127 would wrap around in int8.
    """
    return label.astype(jnp.int32) if label.dtype.itemsize < 4 else label


def valid_classes(label: jax.Array, classes: int) -> tuple[jax.Array, jax.Array]:
    """Return labels with 0 in place of invalid ones, and a mask of valid labels."""
    class_ = class_numbers(label)
    valid = (class_ >= 0) & (class_ < classes)
    return jnp.where(valid, class_, 0), valid
