"""Functions with hand-written gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar

import jax

Result = TypeVar("Result")
Backward = Callable[..., Any]
WithBackward = tuple[jax.Array, Backward]
"""A result, and the function from its cotangent to the cotangents of the operands."""


def with_gradient(
    function: Callable[..., tuple[Result, Backward]],
) -> Callable[..., Result]:
    """Return the function of an op from one that also returns its backward.

    `function(*operands, **attributes)` returns the result and `backward(*dys)`, which
    returns the cotangents of the operands. Every array that `backward` uses from
    outside is saved for it: an operand, or a residual.
    """

    @wraps(function)
    def op(*operands: Any, **attributes: Any) -> Result:
        result: Result
        result = jax.custom_gradient(partial(function, **attributes))(*operands)
        return result

    return op


def differentiable(
    forward: Callable[..., tuple[Result, Any]],
    backward: Callable[..., Any],
    static: int = 0,
    function: Callable[..., Result] | None = None,
) -> Callable[..., Result]:
    """Return the function that `forward` computes, with the gradient `backward`.

    The first `static` arguments are no arrays, and must be hashable. Use
    `with_gradient` unless `backward` needs constant arrays, which that would save, or
    residuals in another order than that in which it uses them.
    `forward(*static, *operands)` returns the result and what to save, and
    `backward(*static, saved, dy)` the cotangents of the operands. `function` computes
    only the result, if that is not the first part of `forward`.
    """

    def compute(*arguments: Any) -> Result:
        return forward(*arguments)[0]

    result = jax.custom_vjp(function or compute, nondiff_argnums=tuple(range(static)))
    result.defvjp(forward, backward)
    return result
