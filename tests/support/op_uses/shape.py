"""reshape, flatten, concat and tile."""

import jax.numpy as jnp

from support.op_use import Use


def plain_flatten(x, axis=1):
    joined = [] if axis == x.ndim else x.shape[axis:]
    size = 1
    for n in joined:
        size *= n
    return x.reshape([*x.shape[: x.ndim - len(joined)], size])


def plain_tile(x, repeats):
    for axis, times in enumerate(repeats):
        x = jnp.concatenate([x] * times, axis)
    return x


def plain_reshape(x, shape):
    if list(shape) == ["batch", 1, -1]:
        return x[:, None, :]
    sizes = [-1 if d == "batch" and -1 not in shape else d for d in shape]
    return x.reshape([x.shape[0] if d == "batch" else d for d in sizes])


DIFFERENTIABLE = [
    Use("reshape", ("float32[batch, 6]",), {"shape": ["batch", 2, 3]}),
    Use("reshape", ("float32[batch, 6]",), {"shape": ["batch", 2, -1]}),
    Use("reshape", ("float32[batch, 2, 3]",), {"shape": [-1, 6]}),
    Use("reshape", ("float32[batch, 6]",), {"shape": [6, "batch"]}),
    Use("reshape", ("float32[batch, batch]",), {"shape": ["batch", 1, -1]}),
    Use("reshape", ("float32[4, 3]",), {"shape": [2, -1]}),
    Use("reshape", ("float32[1]",), {"shape": []}),
    Use("concat", ("float32[batch, 4]", "float32[batch, 2]", "float32[batch, 1]")),
    Use("concat", ("float32[2, 4]", "float32[3, 4]"), {"axis": 0}),
    Use("flatten", ("float32[batch, 2, 3]",)),
    Use("flatten", ("float32[batch, 2, 3]",), {"axis": -1}),
    Use("flatten", ("float32[batch, 1]",), {"axis": 0}),
    Use("flatten", ("float32[batch]",)),
    Use("flatten", ("float32[2, batch, 1]",)),
    Use("flatten", ("float32[2, 3]",), {"axis": 0}),
    Use("tile", ("float32[batch, 3]",), {"repeats": [1, 2]}),
    Use("tile", ("float32[batch, 3]",), {"repeats": [1, 1]}),
    Use("tile", ("float32[2, batch, 1]",), {"repeats": [2, 1, 4]}),
    Use("tile", ("float32[]",), {"repeats": []}),
]

WITHOUT_GRADIENT = [
    Use("reshape", ("int32[batch]",), {"shape": ["batch", 1]}),
    Use("concat", ("int32[batch, 4]", "int32[batch, 2]")),
    Use("flatten", ("int32[batch, 2, 3]",)),
    Use("tile", ("bool[batch, 3]",), {"repeats": [1, 2]}),
]

PLAIN = {
    "reshape": plain_reshape,
    "concat": lambda *xs, axis=-1: jnp.concatenate(xs, axis),
    "flatten": plain_flatten,
    "tile": plain_tile,
}
