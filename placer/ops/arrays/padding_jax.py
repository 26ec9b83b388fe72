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
        return _framed(pairs, value, x)
    return jnp.pad(x, pairs, mode)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _framed(pairs: Pairs, value: float, x: jax.Array) -> jax.Array:
    return jnp.pad(x, pairs, constant_values=value)


def _framed_forward(pairs: Pairs, value: float, x: jax.Array) -> tuple[jax.Array, None]:
    # JAX would keep the value as an array
    return _framed(pairs, value, x), None


def _framed_backward(
    pairs: Pairs, value: float, kept: None, dy: jax.Array
) -> tuple[jax.Array]:
    ends = (size - after for size, (_, after) in zip(dy.shape, pairs, strict=True))
    return (jax.lax.slice(dy, [before for before, _ in pairs], list(ends)),)


_framed.defvjp(_framed_forward, _framed_backward)
