"""transpose, squeeze and expand_dims."""

import jax.numpy as jnp

from support.op_use import Use


def plain_transpose(x, perm=None):
    letters = "abcd"[: x.ndim]
    order = range(x.ndim)[::-1] if perm is None else perm
    return jnp.einsum(f"{letters}->{''.join(letters[i] for i in order)}", x)


def plain_squeeze(x, axis):
    removed = [a % x.ndim for a in ([axis] if isinstance(axis, int) else axis)]
    return x[tuple(0 if a in removed else slice(None) for a in range(x.ndim))]


def plain_expand_dims(x, axis):
    new = [axis] if isinstance(axis, int) else axis
    rank = x.ndim + len(new)
    added = [a % rank for a in new]
    return x[tuple(None if a in added else slice(None) for a in range(rank))]


DIFFERENTIABLE = [
    Use("transpose", ("float32[batch, 2, 3]",), {"perm": [0, 2, 1]}),
    Use("transpose", ("float32[batch, 2, 3]",), {"perm": [1, 0, 2]}),
    Use("transpose", ("float32[batch, 2, 3]",), {"perm": [-3, -1, -2]}),
    Use("transpose", ("float32[batch, 4]",)),
    Use("transpose", ("float32[batch, batch]",)),
    Use("transpose", ("float32[batch]",)),
    Use("transpose", ("float32[2, 3]",)),
    Use("transpose", ("float32[]",)),
    Use("squeeze", ("float32[batch, 1]",), {"axis": -1}),
    Use("squeeze", ("float32[batch, 1, 3, 1]",), {"axis": [1, -1]}),
    Use("squeeze", ("float32[1, batch]",), {"axis": 0}),
    Use("squeeze", ("float32[batch, 1]",), {"axis": []}),
    Use("expand_dims", ("float32[batch]",), {"axis": -1}),
    Use("expand_dims", ("float32[batch, 3]",), {"axis": 0}),
    Use("expand_dims", ("float32[batch, 3]",), {"axis": [1, -1]}),
    Use("expand_dims", ("float32[]",), {"axis": 0}),
]

WITHOUT_GRADIENT = [
    Use("transpose", ("int32[batch, 4]",), {"perm": [0, 1]}),
    Use("squeeze", ("int32[batch, 1]",), {"axis": 1}),
    Use("expand_dims", ("int32[batch]",), {"axis": 1}),
]

PLAIN = {
    "transpose": plain_transpose,
    "squeeze": plain_squeeze,
    "expand_dims": plain_expand_dims,
}
