"""transpose, squeeze and expand_dims."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

Axes = int | Sequence[int]


def transpose(x: jax.Array, *, perm: Sequence[int] | None = None) -> jax.Array:
    return jnp.transpose(x, None if perm is None else tuple(perm))


def squeeze(x: jax.Array, *, axis: Axes) -> jax.Array:
    return jnp.squeeze(x, axis if isinstance(axis, int) else tuple(axis))


def expand_dims(x: jax.Array, *, axis: Axes) -> jax.Array:
    return jnp.expand_dims(x, axis if isinstance(axis, int) else tuple(axis))
