"""Programs of ops, and the equations in them."""

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
from jax.extend import core

from placer import ops
from support.op_use import Use


def backward_program(use: Use) -> Callable[..., Any]:
    """Return a program of forward and backward with the results and all gradients."""
    function = getattr(ops, use.kind)
    saves = use.declaration.saves(use.types, use.all_attrs)

    def program(*operands: Any) -> Any:
        out, residuals = function.forward(*operands, **use.attrs)
        outs = out if isinstance(out, tuple) else (out,)
        saved = [operands[i] for i in saves]
        return out, function.backward(residuals, *saved, *map(jnp.ones_like, outs))

    return program


def find_equations(jaxpr: core.Jaxpr, primitive: str) -> Iterator[core.JaxprEqn]:
    """Yield the equations of a primitive, including those of inner programs."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == primitive:
            yield equation
        for inner in equation.params.values():
            if isinstance(inner, core.ClosedJaxpr):
                yield from find_equations(inner.jaxpr, primitive)
            elif isinstance(inner, core.Jaxpr):
                yield from find_equations(inner, primitive)


def count_products(jaxpr: core.Jaxpr) -> int:
    """Return the number of matrix products in a program; a loop's body counts once."""
    return sum(1 for _ in find_equations(jaxpr, "dot_general"))
