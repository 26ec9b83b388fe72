"""split and slice."""

import jax.numpy as jnp

from support.op_use import Use


def plain_split(x, sections, axis=-1):
    rest = jnp.moveaxis(x, axis, 0)
    if isinstance(sections, int):
        sections = [len(rest) // sections] * sections
    parts = []
    for size in sections:
        parts.append(jnp.moveaxis(rest[:size], 0, axis))
        rest = rest[size:]
    return tuple(parts)


def plain_slice(x, axis, start=None, stop=None, step=1):
    axes = [axis] if isinstance(axis, int) else axis
    bounds = [
        b if isinstance(b, list) else [b] * len(axes) for b in (start, stop, step)
    ]
    for at, *bound in zip(axes, *bounds, strict=True):
        indices = range(x.shape[at])[slice(*bound)]
        x = jnp.stack([jnp.take(x, i, at) for i in indices], at)
    return x


DIFFERENTIABLE = [
    Use("split", ("float32[batch, 6]",), {"sections": 3}),
    Use("split", ("float32[batch, 6]",), {"sections": [1, 5]}),
    Use("split", ("float32[batch, 4, 3]",), {"sections": 2, "axis": 1}),
    Use("split", ("float32[4, batch]",), {"sections": [3, 1], "axis": 0}),
    Use("slice", ("float32[batch, 6]",), {"axis": 1, "start": 2, "stop": 5}),
    Use("slice", ("float32[batch, 6]",), {"axis": -1, "start": -2}),
    Use("slice", ("float32[batch, 6]",), {"axis": -1, "step": -1}),
    Use("slice", ("float32[batch, 6]",), {"axis": 1, "start": 5, "stop": 0, "step": -2}),
    Use(
        "slice",
        ("float32[batch, 4, 5]",),
        {"axis": [1, 2], "start": [0, 1], "stop": -1, "step": [2, 1]},
    ),
    Use("slice", ("float32[4, batch]",), {"axis": 0, "stop": 2}),
]  # fmt: skip

WITHOUT_GRADIENT = [
    Use("split", ("int32[batch, 2]",), {"sections": 2}),
    Use("slice", ("bool[batch, 4]",), {"axis": 1, "stop": 2}),
]

PLAIN = {"split": plain_split, "slice": plain_slice}
