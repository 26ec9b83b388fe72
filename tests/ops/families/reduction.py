"""Reductions."""

import jax.numpy as jnp
import numpy as np
from op_use import Use


def _reductions(kind: str) -> list[Use]:
    return [
        Use(kind, ("float32[batch, 4]",)),
        Use(kind, ("float32[batch, 4]",), {"axis": 1}),
        Use(kind, ("float32[batch, 4]",), {"axis": [-2], "keepdims": True}),
        Use(kind, ("float32[batch, 4, 3]",), {"axis": [0, 2]}),
        Use(kind, ("float32[4, batch]",)),
        Use(kind, ("float32[4, 3]",), {"axis": []}),
        Use(kind, ("float32[]",)),
    ]


def plain_sum(x, axis=None, keepdims=False):
    return jnp.sum(x, None if axis is None else tuple(np.atleast_1d(axis).astype(int)),
                   keepdims=keepdims)  # fmt: skip


def plain_mean(x, axis=None, keepdims=False, count=None):
    total = plain_sum(x, axis, keepdims)
    return total * (max(1, total.size) / x.size)


DIFFERENTIABLE = [
    *_reductions("reduce_sum"),
    *_reductions("reduce_mean"),
]

WITHOUT_GRADIENT: list[Use] = []

PLAIN = {
    "reduce_sum": plain_sum,
    "reduce_mean": plain_mean,
}
