"""Random masks."""

from math import prod

import jax.numpy as jnp
from jax.extend.random import threefry2x32_p

from support.op_use import Use

_POSITION = {1: (0, 1000)}


def plain_drop(x, position, rate, stream):
    """Compute the mask row by row, with bits from JAX's threefry."""
    row = prod(x.shape[1:])
    word = jnp.uint32([stream & 0xFFFFFFFF, stream >> 32])
    columns = position[:, 0], position[:, 1]
    spread = [jnp.full(position.shape[0], w) for w in word]
    first, second = threefry2x32_p.bind(*spread, *columns)
    pairs = jnp.arange(-(-row // 2), dtype=jnp.uint32)
    masks = []
    for i in range(x.shape[0]):
        key = jnp.full_like(pairs, first[i]), jnp.full_like(pairs, second[i])
        bits = threefry2x32_p.bind(*key, jnp.zeros_like(pairs), pairs)
        flat = jnp.stack(bits, -1).ravel()[:row]
        masks.append((flat >= round(rate * 2**32)).reshape(x.shape[1:]))
    return jnp.where(jnp.stack(masks), x / (1 - rate), 0.0)


DIFFERENTIABLE = [
    Use("drop", (x, "uint32[batch, 2]"), {"rate": rate, "stream": stream}, _POSITION)
    for x, rate, stream in (
        ("float32[batch, 5]", 0.5, 7),
        ("float32[batch, 3, 2]", 0.1, 2**62 + 11),
        ("float32[batch]", 0.9, 3),
        ("float32[batch, 4]", 0.0, 1),
    )
]

WITHOUT_GRADIENT: list[Use] = []

PLAIN = {"drop": plain_drop}
