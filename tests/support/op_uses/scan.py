"""cumsum."""

import jax.numpy as jnp

from support.op_use import Use


def plain_cumsum(x, axis=-1, reverse=False, exclusive=False):
    n = x.shape[axis]
    into, of = jnp.arange(n)[:, None], jnp.arange(n)
    counts = of >= into if reverse else of <= into
    counts = (counts & (of != into) if exclusive else counts).astype(x.dtype)
    return jnp.moveaxis(jnp.moveaxis(x, axis, -1) @ counts.T, -1, axis)


DIFFERENTIABLE = [
    Use("cumsum", ("float32[batch, 4]",), attrs | axis)
    for attrs in (
        {},
        {"reverse": True},
        {"exclusive": True},
        {"reverse": True, "exclusive": True},
    )
    for axis in ({}, {"axis": 0})
] + [
    Use("cumsum", ("float32[batch, 1]",), {"exclusive": True}),
    Use("cumsum", ("float32[batch, 3, 2]",), {"axis": 1, "exclusive": True}),
    Use("cumsum", ("float32[3, batch]",)),
]

WITHOUT_GRADIENT: list[Use] = []

PLAIN = {"cumsum": plain_cumsum}
