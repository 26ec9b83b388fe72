"""Normalization within a row."""

import jax.numpy as jnp

from support.op_use import Use


def normalize(x, axes, epsilon):
    mean = x.mean(axes, keepdims=True)
    variance = ((x - mean) ** 2).mean(axes, keepdims=True)
    return (x - mean) / (variance + epsilon) ** 0.5


def plain_layer_norm(x, scale=1.0, bias=0.0, axis=-1, epsilon=1e-5):
    return normalize(x, tuple(range(x.ndim))[axis:], epsilon) * scale + bias


def plain_rms_norm(x, scale=1.0, axis=-1, epsilon=1e-6):
    axes = tuple(range(x.ndim))[axis:]
    return x / ((x * x).mean(axes, keepdims=True) + epsilon) ** 0.5 * scale


def plain_group_norm(x, scale=1.0, bias=0.0, groups=32, epsilon=1e-5):
    parts = jnp.split(x, groups, -1)
    axes = tuple(range(1, x.ndim))
    return (
        jnp.concatenate([normalize(p, axes, epsilon) for p in parts], -1) * scale + bias
    )


def _uses(kind: str, parameters: int) -> list[Use]:
    return [
        Use(kind, ("float32[batch, 4]", *["float32[4]"] * parameters)),
        Use(kind, ("float32[batch, 3, 4]", "float32[4]")),
        Use(kind, ("float32[3, batch, 4]",), {"epsilon": 0.1}),
        Use(
            kind,
            ("float32[batch, 2, 3, 4]", *["float32[3, 4]"] * parameters),
            {"axis": 2},
        ),
        Use(kind, ("float32[5]", "float32[5]"), {"axis": 0}),
    ]


DIFFERENTIABLE = [
    *_uses("layer_norm", 2),
    *_uses("rms_norm", 1),
    Use(
        "group_norm",
        ("float32[batch, 3, 2, 6]", "float32[6]", "float32[6]"),
        {"groups": 2},
    ),
    Use("group_norm", ("float32[batch, 5, 6]", "float32[6]"), {"groups": 6}),
    Use("group_norm", ("float32[batch, 64]",)),
    Use("group_norm", ("float32[4, 3, 6]",), {"groups": 1, "epsilon": 0.1}),
]

WITHOUT_GRADIENT: list[Use] = []

PLAIN = {
    "layer_norm": plain_layer_norm,
    "rms_norm": plain_rms_norm,
    "group_norm": plain_group_norm,
}
