"""What programs of ops are made of."""

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
from jax.extend import core

from placer import ops
from support.op_use import Use


def backward_of(use: Use) -> Callable[..., Any]:
    """A program of the use's forward and backward: the results and all gradients."""
    function = getattr(ops, use.kind)
    saves = use.declaration.saves(use.types, use.full)

    def program(*operands: Any) -> Any:
        out, residuals = function.forward(*operands, **use.attrs)
        outs = out if isinstance(out, tuple) else (out,)
        saved = [operands[i] for i in saves]
        return out, function.backward(residuals, *saved, *map(jnp.ones_like, outs))

    return program


def equations(jaxpr: core.Jaxpr, primitive: str) -> Iterator[core.JaxprEqn]:
    """The equations of a primitive, wherever they stand."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == primitive:
            yield equation
        for inner in equation.params.values():
            if isinstance(inner, core.ClosedJaxpr):
                yield from equations(inner.jaxpr, primitive)
            elif isinstance(inner, core.Jaxpr):
                yield from equations(inner, primitive)


def products(jaxpr: core.Jaxpr) -> int:
    """How many products of matrices stand in a program, a loop's once."""
    return sum(1 for _ in equations(jaxpr, "dot_general"))
