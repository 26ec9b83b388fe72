"""embedding."""

import jax
import jax.numpy as jnp

from support.op_use import Use

_LISTS, _WEIGHTS, _TABLE = "int32[batch, 4]", "float32[batch, 4]", "float32[3, 4]"
_OUTSIDE = {0: (-1, 3)}


def plain(ids, *weights_and_table, combiner="none", padding=None):
    *weights, table = weights_and_table
    is_used = jnp.full(ids.shape, padding is None) | (ids != padding)
    rows = jnp.where(is_used[..., None], table[ids], 0)
    if combiner == "none":
        return rows
    given = jax.lax.stop_gradient(weights[0]) if weights else jnp.ones(ids.shape)
    w = jnp.where(is_used, given, 0).astype(table.dtype)[..., None]
    divisor = {
        "sum": jnp.ones_like(w[..., 0, :]),
        "mean": jnp.sum(w, -2),
        "sqrtn": jnp.sqrt(jnp.sum(w * w, -2)),
    }[combiner]
    total = jnp.sum(w * rows, -2)
    return jnp.where(divisor == 0, 0, total / jnp.where(divisor == 0, 1, divisor))


DIFFERENTIABLE = [
    Use(
        "embedding",
        (_LISTS, _WEIGHTS, _TABLE),
        {"combiner": "mean", "padding": -1},
        _OUTSIDE,
    ),
    Use("embedding", ("int32[batch]", _TABLE)),
    Use("embedding", (_LISTS, _WEIGHTS, _TABLE), {"combiner": "sqrtn"}),
    Use("embedding", (_LISTS, _WEIGHTS, _TABLE), {"combiner": "sum", "padding": 2}),
    Use("embedding", (_LISTS, _TABLE), {"combiner": "sum"}),
    Use("embedding", ("int32[batch, 5, 1]", _TABLE), {"combiner": "mean"}),
    Use("embedding", ("int32[batch, 4]", _TABLE), {"combiner": "sqrtn"}),
    Use("embedding", (_LISTS, _TABLE), {"combiner": "sqrtn", "padding": -1}, _OUTSIDE),
    Use("embedding", ("int32[4]", "float32[4]", _TABLE), {"combiner": "mean"}),
    Use("embedding", (_LISTS, _TABLE)),
    Use("embedding", (_LISTS, _TABLE), {"padding": 0}),
]

WITHOUT_GRADIENT: list[Use] = []

PLAIN = {
    "embedding": plain,
}
