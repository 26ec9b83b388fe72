"""Represents integers as floats, in which sums of one value and zeros are exact."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

_PIECE = 16
"""The bits of a piece of an integer, which float32 represents exactly."""


def to_floats(array: Any) -> Any:
    """Return an array as floats, which can be added to 0 exactly."""
    if jnp.issubdtype(array.dtype, jnp.inexact):
        return array
    if jnp.issubdtype(array.dtype, jnp.bool_):
        return array.astype(jnp.float32)
    bits = array.dtype.itemsize * 8
    whole = jax.lax.bitcast_convert_type(array, jnp.dtype(f"uint{bits}"))
    shifts = range(0, bits, _PIECE)
    mask = jnp.asarray((1 << min(bits, _PIECE)) - 1, whole.dtype)
    pieces = [(whole >> jnp.asarray(n, whole.dtype)) & mask for n in shifts]
    return jnp.stack([piece.astype(jnp.float32) for piece in pieces], -1)


def from_floats(array: Any, dtype: Any) -> Any:
    """Return the array of `to_floats`."""
    if jnp.issubdtype(dtype, jnp.inexact):
        return array
    if jnp.issubdtype(dtype, jnp.bool_):
        return array > 0
    bits = dtype.itemsize * 8
    unsigned = jnp.dtype(f"uint{bits}")
    whole = jnp.zeros(array.shape[:-1], unsigned)
    for at, shift in enumerate(range(0, bits, _PIECE)):
        piece = array[..., at].astype(unsigned)
        whole = whole | (piece << jnp.asarray(shift, unsigned))
    return jax.lax.bitcast_convert_type(whole, dtype)
