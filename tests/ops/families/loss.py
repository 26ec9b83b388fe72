"""Losses."""

import jax.numpy as jnp
from op_use import Use

from families.activation import plain_softmax


def _losses(kind: str, *operands: tuple[str, ...]) -> list[Use]:
    return [
        Use(kind, given, {"reduce": reduce} if reduce else {})
        for given in operands
        for reduce in ("", "sum", "none")
    ]


def reduced(losses, reduce="mean", count=None):
    return {"mean": losses.mean, "sum": losses.sum, "none": lambda: losses}[reduce]()


def plain_softmax_cross_entropy(logits, label, **how):
    onehot = jnp.eye(logits.shape[-1])[label]
    return reduced(-(onehot * jnp.log(plain_softmax(logits))).sum(-1), **how)


def plain_sigmoid_cross_entropy(logits, label, **how):
    p = 1 / (1 + jnp.exp(-logits))
    return reduced(-(label * jnp.log(p) + (1 - label) * jnp.log(1 - p)), **how)


DIFFERENTIABLE = [
    *_losses(
        "softmax_cross_entropy",
        ("float32[batch, 3]", "int32[batch]"),
        ("float32[batch, 2, 3]", "int32[batch, 2]"),
        ("float32[8, 3]", "int32[8]"),
    ),
    *_losses(
        "sigmoid_cross_entropy",
        ("float32[batch, 2]", "int32[batch, 2]"),
        ("float32[batch]", "float32[batch]"),
        ("float32[8, 3]", "float32[8, 3]"),
    ),
    *_losses(
        "mean_squared_error",
        ("float32[batch, 2]", "float32[batch, 2]"),
        ("float32[8]", "float32[8]"),
        ("float32[2, batch]", "float32[2, batch]"),
    ),
]

WITHOUT_GRADIENT: list[Use] = []

PLAIN = {
    "softmax_cross_entropy": plain_softmax_cross_entropy,
    "sigmoid_cross_entropy": plain_sigmoid_cross_entropy,
    "mean_squared_error": lambda p, t, **how: reduced((p - t) ** 2, **how),
}
