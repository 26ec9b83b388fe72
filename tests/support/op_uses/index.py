"""gather, take_along_axis and one_hot."""

import jax.numpy as jnp

from support.op_use import Use


def plain_gather(x, indices, axis=0):
    axis %= x.ndim
    flat = [jnp.take(x, i, axis) for i in indices.reshape(-1)]
    selected = jnp.moveaxis(jnp.stack(flat), 0, axis)
    return selected.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


def plain_take_along_axis(x, indices, axis=-1):
    expanded = jnp.moveaxis(x, axis, -1)[..., None, :]
    number = jnp.moveaxis(indices, axis, -1)[..., :, None]
    chosen = number == jnp.arange(expanded.shape[-1])
    return jnp.moveaxis((expanded * chosen).sum(-1), -1, axis)


DIFFERENTIABLE = [
    Use("gather", ("float32[3, 4]", "int32[batch, 2]")),
    Use("gather", ("float32[3, batch]", "int32[batch]")),
    Use("gather", ("float32[batch, 3, 2]", "int32[4]"), {"axis": 1}),
    Use("gather", ("float32[batch, 3]", "int32[]"), {"axis": -1}),
    Use("gather", ("float32[batch, 3]", "int32[batch]"), {"axis": 1}),
    Use("gather", ("float32[batch, 3]", "int32[2, 2]")),
    Use("gather", ("float32[batch]", "int32[batch]")),
    Use("gather", ("float32[2, 3]", "int32[batch]"), {"axis": 1}),
    Use("take_along_axis", ("float32[batch, 3]", "int32[batch, 5]")),
    Use("take_along_axis", ("float32[batch, 3, 2]", "int32[batch, 4, 2]"), {"axis": 1}),
    Use("take_along_axis", ("float32[3, 4]", "int32[batch, 4]"), {"axis": 0}),
    Use("take_along_axis", ("float32[batch, 4]", "int32[3, 4]"), {"axis": 0}),
    Use("take_along_axis", ("float32[batch]", "int32[batch]")),
]  # fmt: skip

WITHOUT_GRADIENT = [
    Use("gather", ("int32[batch, 3]", "int32[2]"), {"axis": 1}),
    Use("take_along_axis", ("bool[batch, 3]", "int32[batch, 1]")),
    Use("one_hot", ("int32[batch]",), {"classes": 3}),
    Use("one_hot", ("uint8[batch, 2]",), {"classes": 2, "dtype": "float32"}),
    Use("one_hot", ("int32[2, batch]",), {"classes": 4}),
    Use("one_hot", ("int32[]",), {"classes": 1}),
]

PLAIN = {"gather": plain_gather, "take_along_axis": plain_take_along_axis}
