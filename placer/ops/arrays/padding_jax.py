"""pad."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp

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


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _pad_constant(pairs: Pairs, value: float, x: jax.Array) -> jax.Array:
    return jnp.pad(x, pairs, constant_values=value)


def _pad_constant_forward(
    pairs: Pairs, value: float, x: jax.Array
) -> tuple[jax.Array, None]:
    # A custom VJP, because that of jnp.pad saves the value as an array
    return _pad_constant(pairs, value, x), None


def _pad_constant_backward(
    pairs: Pairs, value: float, _: None, dy: jax.Array
) -> tuple[jax.Array]:
    ends = (size - after for size, (_, after) in zip(dy.shape, pairs, strict=True))
    return (jax.lax.slice(dy, [before for before, _ in pairs], list(ends)),)


_pad_constant.defvjp(_pad_constant_forward, _pad_constant_backward)
