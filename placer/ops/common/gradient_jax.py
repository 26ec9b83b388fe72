"""Functions with custom gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar

import jax

Result = TypeVar("Result")
Backward = Callable[..., Any]
WithBackward = tuple[jax.Array, Backward]
"""A result, and its backward: a function from its cotangent to the operands'."""


def with_gradient(
    function: Callable[..., tuple[Result, Backward]],
) -> Callable[..., Result]:
    """Decorate a function that returns its result and its backward.

    `function(*operands, **attributes)` returns `result, backward`. `backward(*dys)`
    returns the cotangents of the operands. Arrays that `backward` captures become
    residuals.
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
    """Return a function with a custom gradient, from a separate forward and backward.

    Prefer `with_gradient`. Use this function if `backward` needs constant arrays, which
    `with_gradient` would save as residuals, or if the order of the residuals matters.

    Args:
        forward: `forward(*static, *operands)` returns the result and the residuals.
        backward: `backward(*static, residuals, dy)` returns the cotangents of the
            operands.
        static: the number of leading arguments that are hashable and not arrays.
        function: computes only the result; by default the first output of `forward`.
    """

    def compute(*arguments: Any) -> Result:
        return forward(*arguments)[0]

    result = jax.custom_vjp(function or compute, nondiff_argnums=tuple(range(static)))
    result.defvjp(forward, backward)
    return result
