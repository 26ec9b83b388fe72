"""accuracy."""

from __future__ import annotations

from math import prod

import jax
import jax.numpy as jnp

from placer.ops.functions.broadcast import divide


def accuracy(
    logits: jax.Array, label: jax.Array, *, count: int | jax.Array | None = None
) -> jax.Array:
    """The share of right rows; with `count`, of that many of which some are here."""
    right = jnp.argmax(logits, axis=-1).astype(label.dtype) == label
    total = jnp.sum(right, dtype=logits.dtype)
    if count is None:
        return divide(total, label.size)
    return divide(total, count * prod(label.shape[1:]))
