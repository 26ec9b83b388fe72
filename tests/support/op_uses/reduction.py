"""Reductions."""

import jax.numpy as jnp
import numpy as np

from support.op_use import Use


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


def plain_extremum(better):
    def plain(x, axis=None, keepdims=False):
        axes = range(x.ndim) if axis is None else np.atleast_1d(axis).astype(int)
        reduced = {int(a) % x.ndim for a in axes}
        result = x
        for a in reduced:
            slices = jnp.moveaxis(result, a, 0)
            best = slices[0]
            for other in slices[1:]:
                best = better(best, other)
            result = jnp.expand_dims(best, a)
        return result if keepdims else jnp.squeeze(result, tuple(reduced))

    return plain


DIFFERENTIABLE = [
    *_reductions("reduce_sum"),
    *_reductions("reduce_mean"),
    *_reductions("reduce_max"),
    *_reductions("reduce_min"),
]

WITHOUT_GRADIENT: list[Use] = []

PLAIN = {
    "reduce_sum": plain_sum,
    "reduce_mean": plain_mean,
    "reduce_max": plain_extremum(jnp.maximum),
    "reduce_min": plain_extremum(jnp.minimum),
}
