"""embedding: rows of a table, and their sums and means. An invalid id gives NaN."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from ..arrays.index_jax import gather, index_axis, scatter_gradient
from ..common.gradient_jax import WithBackward, with_gradient
from ..common.precision_jax import widen


@with_gradient
def embedding(
    *operands: jax.Array, combiner: str = "none", padding: int | None = None
) -> WithBackward:
    ids, *weights, table = operands

    def backward(dy: jax.Array) -> tuple[jax.Array | None, ...]:
        if combiner != "none":
            factors = _factors(ids, weights, padding)
            dy = _normalize(widen(dy), factors, ids.shape[-1], combiner)[..., None, :]
            dy = dy * factors[..., None] if factors is not None and weights else dy
            dy = jnp.broadcast_to(dy, (*ids.shape, table.shape[1]))
        used = ids if padding is None else jnp.where(ids == padding, -1, ids)
        place = index_axis(0, table.shape, used)
        dtable = scatter_gradient(table.shape, place, dy).astype(table.dtype)
        return None, *map(jnp.zeros_like, weights), dtable

    rows = gather(table, ids)
    if padding is not None:
        rows = jnp.where((ids == padding)[..., None], 0, rows)
    if combiner == "none":
        return rows, backward
    factors = _factors(ids, weights, padding)
    total = _add_up(widen(rows), factors)
    out = _normalize(total, factors, ids.shape[-1], combiner).astype(table.dtype)
    return out, backward


def _factors(
    ids: jax.Array, weights: Sequence[jax.Array], padding: int | None
) -> jax.Array | None:
    """Return the weight of each id, 0 for padding; None if all weights are 1."""
    if padding is None:
        return widen(weights[0]) if weights else None
    return jnp.where(ids == padding, 0.0, widen(weights[0]) if weights else 1.0)


def _add_up(rows: jax.Array, factors: jax.Array | None) -> jax.Array:
    """Return the weighted sum of rows, of shape [..., n, dimension]."""
    if factors is None:
        return jnp.sum(rows, axis=-2)
    # With the default precision a GPU would round the rows
    return jnp.einsum("...nd,...n->...d", rows, factors, precision="highest")


def _normalize(
    total: jax.Array, factors: jax.Array | None, n: int, combiner: str
) -> jax.Array:
    """Divide the sum of `n` rows by the combiner's divisor. Division by 0 gives 0."""
    if combiner == "sum" or n == 0:
        return total
    if factors is None:
        return total / (n if combiner == "mean" else n**0.5)
    terms = factors if combiner == "mean" else jnp.square(factors)
    # Not a sum: on a CPU, XLA would fuse it and compute it again for each element
    ones = jnp.ones(n, terms.dtype)
    divisor = jnp.dot(terms, ones, precision="highest")[..., None]
    divisor = divisor if combiner == "mean" else jnp.sqrt(divisor)
    return total / jnp.where(divisor == 0, jnp.inf, divisor)
