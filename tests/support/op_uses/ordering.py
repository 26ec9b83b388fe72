"""top_k, argmax and argmin."""

import jax.numpy as jnp

from support.op_use import Use


def plain_top_k(x, k):
    order = jnp.argsort(-x, axis=-1)[..., :k]
    return jnp.take_along_axis(x, order, axis=-1), order


DIFFERENTIABLE = [
    Use("top_k", ("float32[batch, 5]",), {"k": 2}),
    Use("top_k", ("float32[batch, 2, 3]",), {"k": 3}),
    Use("top_k", ("float32[4]",), {"k": 1}),
]

WITHOUT_GRADIENT = [
    use
    for kind in ("argmax", "argmin")
    for use in (
        Use(kind, ("float32[batch, 4]",)),
        Use(kind, ("float32[batch, 4, 3]",), {"axis": 1, "keepdims": True}),
        Use(kind, ("float32[batch, 4]",), {"axis": 0}),
        Use(kind, ("float32[batch]",), {"axis": 0, "keepdims": True}),
        Use(kind, ("float32[4, batch]",)),
    )
]

PLAIN = {"top_k": plain_top_k}
