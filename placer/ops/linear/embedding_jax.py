"""embedding: NaN for an id outside the table, so that a wrong one is seen."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from placer.ops.common.precision_jax import put_together


def embedding(ids: jax.Array, table: jax.Array) -> jax.Array:
    return _lookup(table.shape[0], ids, table)


def _rows(vocabulary: int, ids: jax.Array) -> jax.Array:
    """The ids, negative ones moved out of the table: JAX would count from the end."""
    return jnp.where(ids < 0, vocabulary, ids)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _lookup(vocabulary: int, ids: jax.Array, table: jax.Array) -> jax.Array:
    rows = _rows(vocabulary, ids)
    return jnp.take(table, rows, axis=0, mode="fill", fill_value=jnp.nan)


def _lookup_forward(
    vocabulary: int, ids: jax.Array, table: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return _lookup(vocabulary, ids, table), ids


def _lookup_backward(
    vocabulary: int, ids: jax.Array, dy: jax.Array
) -> tuple[None, jax.Array]:
    shape = vocabulary, dy.shape[-1]
    return None, put_together(shape, _rows(vocabulary, ids), dy, "drop")


_lookup.defvjp(_lookup_forward, _lookup_backward)
