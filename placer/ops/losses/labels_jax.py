"""Labels in a dtype that can represent every class."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def class_numbers(label: jax.Array) -> jax.Array:
    """Convert labels to at least 32 bits.

    int8 cannot represent classes beyond 127, which would wrap around in a comparison.
    """
    return label.astype(jnp.int32) if label.dtype.itemsize < 4 else label


def valid_classes(label: jax.Array, classes: int) -> tuple[jax.Array, jax.Array]:
    """Return labels with 0 for each outside [0, classes), and a mask of the others."""
    class_ = class_numbers(label)
    valid = (class_ >= 0) & (class_ < classes)
    return jnp.where(valid, class_, 0), valid
