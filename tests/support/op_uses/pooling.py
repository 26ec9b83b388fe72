"""Pooling. The plain formula computes each window separately."""

import jax.numpy as jnp

from support.op_use import Use
from support.op_uses.convolution import padding_of, per_dimension


def window_spans(size, window, stride, before, after):
    """Return start and end of each window, without padding."""
    outputs = (size + before + after - window) // stride + 1
    starts = [i * stride - before for i in range(outputs)]
    return [(max(start, 0), min(start + window, size)) for start in starts]


def pool(x, reduce, rows, columns):
    table = [
        [reduce(x[:, top:bottom, left:right], (1, 2)) for left, right in columns]
        for top, bottom in rows
    ]
    return jnp.stack([jnp.stack(row, 1) for row in table], 1)


def first_largest(x, axes):
    """Return the maximum, with the gradient going to the first largest element.

    The gradient of jnp.max compares the elements with the maximum. If XLA computes
    them twice and rounds them differently, no element is equal and the gradient is 0 / 0.
    """
    flat = x.reshape(len(x), -1, x.shape[-1])
    return jnp.take_along_axis(flat, jnp.argmax(flat, 1, keepdims=True), 1)[:, 0]


def sliding_pool(reduce):
    def plain(x, pool_size, strides=None, padding="valid"):
        dims = x.ndim - 2
        window = per_dimension(pool_size, dims)
        steps = window if strides is None else per_dimension(strides, dims)
        both = [
            window_spans(n, k, s, *padding_of(padding, at, n, k, s, 1))
            for at, (n, k, s) in enumerate(
                zip(x.shape[1:-1], window, steps, strict=True)
            )
        ]
        if dims == 1:
            return pool(x[:, None], reduce, [(0, 1)], *both)[:, 0]
        return pool(x, reduce, *both)

    return plain


def adaptive_pool(reduce):
    def plain(x, output_size):
        both = [
            [(i * n // m, ((i + 1) * n + m - 1) // m) for i in range(m)]
            for n, m in zip(x.shape[1:3], per_dimension(output_size, 2), strict=True)
        ]
        return pool(x, reduce, *both)

    return plain


IMAGE = "float32[batch, 6, 5, 2]"


def _uses(kind: str) -> list[Use]:
    return [
        Use(f"{kind}1d", ("float32[batch, 9, 2]",), {"pool_size": 2}),
        Use(
            f"{kind}1d",
            ("float32[5, 9, 2]",),
            {"pool_size": [3], "strides": 2, "padding": [[2, 1]]},
        ),
        Use(f"{kind}2d", (IMAGE,), {"pool_size": 2}),
        Use(f"{kind}2d", (IMAGE,), {"pool_size": 3, "strides": 2, "padding": "same"}),
        Use(f"{kind}2d", (IMAGE,), {"pool_size": [3, 2], "strides": 1, "padding": 1}),
        Use(f"{kind}2d", (IMAGE,), {"pool_size": [1, 2], "strides": [2, 3]}),
        Use(f"{kind}2d", ("float32[3, 6, 5, 2]",), {"pool_size": [6, 5]}),
        Use(f"adaptive_{kind}2d", (IMAGE,), {"output_size": 1}),
        Use(f"adaptive_{kind}2d", (IMAGE,), {"output_size": [3, 4]}),
        Use(f"adaptive_{kind}2d", ("float32[3, 6, 5, 2]",), {"output_size": [8, 5]}),
    ]


DIFFERENTIABLE = [
    *_uses("max_pool"),
    Use(
        "max_pool2d",
        ("float32[batch, 17, 20, 1]",),
        {"pool_size": [16, 17], "strides": 1},
    ),
    *_uses("avg_pool"),
]

WITHOUT_GRADIENT: list[Use] = []

PLAIN = {
    "max_pool1d": sliding_pool(first_largest),
    "max_pool2d": sliding_pool(first_largest),
    "adaptive_max_pool2d": adaptive_pool(first_largest),
    "avg_pool1d": sliding_pool(jnp.mean),
    "avg_pool2d": sliding_pool(jnp.mean),
    "adaptive_avg_pool2d": adaptive_pool(jnp.mean),
}
