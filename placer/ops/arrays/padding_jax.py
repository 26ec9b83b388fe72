"""pad."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from ..common.gradient_jax import WithBackward, with_gradient


def pad(
    x: jax.Array,
    *,
    paddings: Sequence[Sequence[int]],
    value: float = 0.0,
    mode: str = "constant",
) -> jax.Array:
    pairs = tuple((before, after) for before, after in paddings)
    if mode == "constant":
        return _pad_constant(x, pairs=pairs, value=value)
    return jnp.pad(x, pairs, mode)


@with_gradient  # custom, because jnp.pad's gradient saves the value as an array
def _pad_constant(
    x: jax.Array, *, pairs: Sequence[tuple[int, int]], value: float
) -> WithBackward:
    starts = [before for before, _ in pairs]
    ends = [n + start for n, start in zip(x.shape, starts, strict=True)]
    padded = jnp.pad(x, pairs, constant_values=value)
    return padded, lambda dy: jax.lax.slice(dy, starts, ends)
