"""pad."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from placer.ops.common.gradient_jax import linear

Pairs = tuple[tuple[int, int], ...]


def pad(
    x: jax.Array,
    *,
    paddings: Sequence[Sequence[int]],
    value: float = 0.0,
    mode: str = "constant",
) -> jax.Array:
    pairs = tuple((before, after) for before, after in paddings)
    if mode == "constant":
        return _pad_constant(pairs, value, x)
    return jnp.pad(x, pairs, mode)


def _pad_constant_backward(pairs: Pairs, value: float, dy: jax.Array) -> jax.Array:
    ends = (size - after for size, (_, after) in zip(dy.shape, pairs, strict=True))
    return jax.lax.slice(dy, [before for before, _ in pairs], list(ends))


_pad_constant = linear(  # that of jnp.pad saves the value as an array
    lambda pairs, value, x: jnp.pad(x, pairs, constant_values=value),
    _pad_constant_backward,
    static=2,
)
