"""Functions with hand-written gradients, as `jax.custom_vjp`.

The first `static` arguments of a function are no arrays, and must be hashable.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar

import jax

Result = TypeVar("Result")
Elementwise = Callable[[jax.Array], jax.Array]
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
        custom_gradient: Any = jax.custom_gradient  # not annotated
        result: Result = custom_gradient(partial(function, **attributes))(*operands)
        return result

    return op


def differentiable(
    forward: Callable[..., tuple[Result, Any]],
    backward: Callable[..., Any],
    static: int = 0,
    function: Callable[..., Result] | None = None,
) -> Callable[..., Result]:
    """Return the function that `forward` computes, with the gradient `backward`.

    `forward(*static, *operands)` returns the result and what to save, and
    `backward(*static, saved, dy)` the cotangents of the operands. `function` computes
    only the result, if that is not the first part of `forward`.
    """

    def compute(*arguments: Any) -> Result:
        return forward(*arguments)[0]

    result = jax.custom_vjp(function or compute, nondiff_argnums=tuple(range(static)))
    result.defvjp(forward, backward)
    return result


def linear(
    function: Callable[..., jax.Array], transpose: Callable[..., jax.Array], static: int
) -> Callable[..., jax.Array]:
    """Return a linear function of one array, which saves nothing for its gradient.

    `transpose(*static, dy)` returns the cotangent of the operand.
    """
    return differentiable(
        lambda *arguments: (function(*arguments), None),
        lambda *arguments: (transpose(*arguments[:static], arguments[-1]),),
        static,
        function,
    )


def from_operand(
    function: Elementwise, backward: Callable[[jax.Array, jax.Array], jax.Array]
) -> Elementwise:
    """Return a function of x with the gradient `backward(x, dy)`."""
    return differentiable(
        lambda x: (function(x), x), lambda x, dy: (backward(x, dy),), 0, function
    )


def from_result(
    function: Elementwise, backward: Callable[[jax.Array, jax.Array], jax.Array]
) -> Elementwise:
    """Return a function of x with the result y and the gradient `backward(y, dy)`."""

    def forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = function(x)
        return y, y

    return differentiable(forward, lambda y, dy: (backward(y, dy),), 0, function)
