"""Pooling: a plain formula takes each window out and works it out by itself."""

import jax.numpy as jnp

from support.op_use import Use
from support.op_uses.convolution import ends, many


def spans(size, window, stride, before, after):
    """Where each window begins and ends, without the padding."""
    outputs = (size + before + after - window) // stride + 1
    starts = [i * stride - before for i in range(outputs)]
    return [(max(start, 0), min(start + window, size)) for start in starts]


def pooled(x, of, rows, columns):
    table = [
        [of(x[:, top:bottom, left:right], (1, 2)) for left, right in columns]
        for top, bottom in rows
    ]
    return jnp.stack([jnp.stack(row, 1) for row in table], 1)


def largest(x, axes):
    """The first largest. The gradient of jnp.max asks which elements are equal to it;
    where XLA computes them once more and rounds them differently, that is 0 / 0."""
    flat = x.reshape(len(x), -1, x.shape[-1])
    return jnp.take_along_axis(flat, jnp.argmax(flat, 1, keepdims=True), 1)[:, 0]


def windowed(of):
    def plain(x, pool_size, strides=None, padding="valid"):
        dims = x.ndim - 2
        window = many(pool_size, dims)
        steps = window if strides is None else many(strides, dims)
        both = [
            spans(n, k, s, *ends(padding, at, n, k, s, 1))
            for at, (n, k, s) in enumerate(
                zip(x.shape[1:-1], window, steps, strict=True)
            )
        ]
        if dims == 1:
            return pooled(x[:, None], of, [(0, 1)], *both)[:, 0]
        return pooled(x, of, *both)

    return plain


def adaptive(of):
    def plain(x, output_size):
        both = [
            [(i * n // m, ((i + 1) * n + m - 1) // m) for i in range(m)]
            for n, m in zip(x.shape[1:3], many(output_size, 2), strict=True)
        ]
        return pooled(x, of, *both)

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
    "max_pool1d": windowed(largest),
    "max_pool2d": windowed(largest),
    "adaptive_max_pool2d": adaptive(largest),
    "avg_pool1d": windowed(jnp.mean),
    "avg_pool2d": windowed(jnp.mean),
    "adaptive_avg_pool2d": adaptive(jnp.mean),
}
