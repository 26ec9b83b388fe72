"""The transpose of a linear function, which is its backward and needs no forward."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax


def transpose(
    function: Callable[[jax.Array], jax.Array], shape: Sequence[int], dy: jax.Array
) -> jax.Array:
    """The cotangent of the operand, of that shape and of the dtype of dy.

    Unlike with `jax.vjp`, the function itself is not run.
    """
    operand = jax.ShapeDtypeStruct(shape, dy.dtype)  # type: ignore[no-untyped-call]
    result: jax.Array = jax.linear_transpose(function, operand)(dy)[0]
    return result
