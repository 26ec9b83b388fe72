"""embedding: rows of a table, or NaN for an id outside it."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from placer.ops.common.gradient_jax import differentiable
from placer.ops.common.precision_jax import scatter_add


def embedding(ids: jax.Array, table: jax.Array) -> jax.Array:
    return _lookup(table.shape[0], ids, table)


def _nonnegative(vocabulary: int, ids: jax.Array) -> jax.Array:
    """Replace negative ids by one beyond the table: JAX would count from its end."""
    return jnp.where(ids < 0, vocabulary, ids)


def _lookup_forward(
    vocabulary: int, ids: jax.Array, table: jax.Array
) -> tuple[jax.Array, jax.Array]:
    rows = _nonnegative(vocabulary, ids)
    return jnp.take(table, rows, axis=0, mode="fill", fill_value=jnp.nan), ids


def _lookup_backward(
    vocabulary: int, ids: jax.Array, dy: jax.Array
) -> tuple[None, jax.Array]:
    # dtable[i] = Σ dy over the places where ids = i
    shape = vocabulary, dy.shape[-1]
    return None, scatter_add(shape, _nonnegative(vocabulary, ids), dy, "drop")


_lookup = differentiable(_lookup_forward, _lookup_backward, static=1)
