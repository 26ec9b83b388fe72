"""Bias and activation after the product of x and w."""

from __future__ import annotations

import jax

from ..elementwise.activation_jax import ACTIVATIONS
from ..elementwise.broadcasting_jax import broadcast_add


def add_bias_and_activate(
    y: jax.Array, b: jax.Array | None, activation: str
) -> jax.Array:
    """Add the bias b, if present, and apply an activation."""
    if b is not None:
        y = broadcast_add(y, b)
    return y if activation == "none" else ACTIVATIONS[activation](y)
