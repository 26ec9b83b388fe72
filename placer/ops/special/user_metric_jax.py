"""metric: sums of the numbers that a user's function returns for each row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from placer.errors import PlacerError


def metric(*inputs: jax.Array, fn: Callable[..., Any]) -> jax.Array:
    """Return [2]: the sum of the numerators and the sum of the denominators."""
    wide = any(x.dtype == jnp.float64 for x in inputs)
    dtype = jnp.float64 if wide else jnp.float32
    if not len(inputs[0]):  # most functions cannot compute a batch without rows
        return jnp.zeros(2, dtype)
    return jnp.stack([jnp.sum(x, dtype=dtype) for x in row_numbers(fn, *inputs)])


def row_numbers(
    fn: Callable[..., Any], *inputs: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the numerator and the denominator of each row.

    Raises PlacerError unless the function returns numbers for each row.
    """
    returned = fn(*inputs)
    is_pair = isinstance(returned, tuple | list)
    parts = tuple(returned) if is_pair else (returned,)
    rows = len(inputs[0])
    good = len(parts) == (2 if is_pair else 1) and all(
        isinstance(each, jax.Array) and each.shape == (rows,) and _is_real(each)
        for each in parts
    )
    if not good:
        returned_types = ", ".join(map(_describe, parts))
        raise PlacerError(
            f"{_name(fn)} returns {'(' * is_pair}{returned_types}{')' * is_pair} for"
            f" {rows} rows, but a metric needs a number for each row",
            hint="return an array of shape [batch], or two of them: a numerator and a"
            " denominator for each row",
        )
    if is_pair:
        return parts[0], parts[1]
    return parts[0], jnp.ones_like(parts[0], dtype=jnp.int32)


def _is_real(x: jax.Array) -> bool:
    kinds = (jnp.bool_, jnp.integer, jnp.floating)
    return any(jnp.issubdtype(x.dtype, kind) for kind in kinds)


def _describe(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    return type(value).__name__


def _name(fn: Callable[..., Any]) -> str:
    return f"{getattr(fn, '__module__', '')}:{getattr(fn, '__name__', fn)}"
