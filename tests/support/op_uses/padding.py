"""Padding."""

import jax.numpy as jnp

from support.op_use import Use


def plain_pad(x, paddings, value=0.0, mode="constant"):
    for axis, (before, after) in enumerate(paddings):
        size = x.shape[axis]
        at = jnp.arange(-before, size + after)
        inside = (at >= 0) & (at < size)
        if mode == "reflect":
            at = size - 1 - jnp.abs(size - 1 - jnp.abs(at))
        at = jnp.clip(at, 0, max(size - 1, 0))
        x = jnp.moveaxis(jnp.take(x, at, axis), axis, -1)
        x = jnp.moveaxis(
            jnp.where(inside, x, value) if mode == "constant" else x, -1, axis
        )
    return x  # fmt: skip


DIFFERENTIABLE = [
    Use("pad", ("float32[batch, 4]",), {"paddings": [[0, 0], [1, 2]]}),
    Use("pad", ("float32[batch, 4]",), {"paddings": [[0, 0], [3, 0]], "value": -2.5}),
    Use(
        "pad",
        ("float32[batch, 3, 4]",),
        {"paddings": [[0, 0], [2, 1], [0, 3]], "mode": "reflect"},
    ),
    Use(
        "pad",
        ("float32[3, batch, 4]",),
        {"paddings": [[4, 1], [0, 0], [0, 5]], "mode": "edge"},
    ),
    Use("pad", ("float32[batch]",), {"paddings": [[0, 0]]}),
]

WITHOUT_GRADIENT = [
    Use("pad", ("int32[batch, 4]",), {"paddings": [[0, 0], [1, 0]], "value": 7.0}),
]

PLAIN = {"pad": plain_pad}
