"""Transposes of linear functions, used as backward without running the forward."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax


def apply_transpose(
    function: Callable[[jax.Array], jax.Array], shape: Sequence[int], dy: jax.Array
) -> jax.Array:
    """Apply the transpose of a linear `function` to `dy`.

    `shape` is the shape of the function's operand. Unlike `jax.vjp`, this does not
    evaluate the function.
    """
    operand = jax.ShapeDtypeStruct(shape, dy.dtype)
    result: jax.Array = jax.linear_transpose(function, operand)(dy)[0]
    return result
