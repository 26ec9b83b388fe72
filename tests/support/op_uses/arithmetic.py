"""Elementwise arithmetic."""

import jax.numpy as jnp

from support.op_use import Use


def pairs(kind: str) -> list[Use]:
    """Return uses of a binary op for all ways of broadcasting."""
    return [
        Use(kind, ("float32[batch, 4]", "float32[batch, 4]")),
        Use(kind, ("float32[batch, 4]", "float32[4]")),
        Use(kind, ("float32[4]", "float32[batch, 4]")),
        Use(kind, ("float32[batch, 4]", "float32[batch, 1]")),
        Use(kind, ("float32[batch, 1]", "float32[batch]")),
        Use(kind, ("float32[batch, 4]", "float32[]")),
        Use(kind, ("float32[2, 1, 4]", "float32[3, 1]")),
        Use(kind, ("float32[]", "float32[]")),
    ]


DIFFERENTIABLE = [
    *pairs("add"),
    *pairs("sub")[:3],
    *pairs("mul"),
    *pairs("div"),
    Use("scale", ("float32[batch, 4]",), {"factor": 0.25}),
    Use("scale", ("float32[batch, 4]",), {"factor": -3.0, "bias": 2.0}),
    Use("negative", ("float32[batch, 4]",)),
    Use("abs", ("float32[batch, 4]",)),
]

WITHOUT_GRADIENT: list[Use] = []

PLAIN = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "scale": lambda x, factor, bias=0.0: factor * x + bias,
    "negative": lambda x: 0 - x,
    "abs": lambda x: jnp.where(x > 0, x, -x),
}
