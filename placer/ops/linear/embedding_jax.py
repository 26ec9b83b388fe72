"""embedding: rows of a table, or NaN for an id outside it."""

from __future__ import annotations

import jax

from placer.ops.arrays.index_jax import gather


def embedding(ids: jax.Array, table: jax.Array) -> jax.Array:
    return gather(table, ids)
