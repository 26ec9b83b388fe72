"""Comparisons, where, maximum, minimum and clip."""

import jax.numpy as jnp

from support.op_use import Use
from support.op_uses.arithmetic import pairs


def plain_clip(x, min=None, max=None):
    if min is not None:
        x = jnp.where(x < min, min, x)
    return x if max is None else jnp.where(x > max, max, x)


DIFFERENTIABLE = [
    Use("where", ("bool[batch, 4]", "float32[batch, 4]", "float32[batch, 4]")),
    Use("where", ("int32[batch, 1]", "float32[batch, 4]", "float32[]")),
    Use("where", ("bool[4]", "float32[batch, 4]", "float32[4]")),
    Use("where", ("bool[batch, 4]", "float32[]", "float32[1]")),
    Use("where", ("bool[batch]", "float32[batch, 1]", "float32[]")),
    Use("where", ("bool[3, 1]", "float32[2, 1, 4]", "float32[]")),
    *pairs("maximum"),
    *pairs("minimum"),
    Use("clip", ("float32[batch, 4]",), {"min": -0.5, "max": 0.9}),
    Use("clip", ("float32[batch, 4]",), {"min": 0.7}),
    Use("clip", ("float32[batch, 4]",), {"max": -0.4}),
]

WITHOUT_GRADIENT = [
    *(
        Use(kind, operands)
        for kind in ("greater", "less", "equal")
        for operands in (
            ("float32[batch, 4]", "float32[batch, 4]"),
            ("float32[batch, 4]", "float32[]"),
            ("int32[batch]", "int32[batch]"),
            ("int32[batch, 1]", "int32[batch]"),
            ("int32[2, 1, 4]", "int32[3, 1]"),
        )
    )
]

PLAIN = {
    "where": lambda condition, a, b: (
        (condition != 0) * (a + 0 * b) + (condition == 0) * (b + 0 * a)
    ),
    "maximum": lambda a, b: jnp.where(a > b, a, b),
    "minimum": lambda a, b: jnp.where(a < b, a, b),
    "clip": plain_clip,
}
