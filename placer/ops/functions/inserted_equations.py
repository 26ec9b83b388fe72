"""Makes equations of a flattened jaxpr from Python functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.extend import core

from placer.ops.functions.flatten import FlatEquation


def equation_of(
    function: Callable[..., Any],
    operands: Sequence[Any],
    like: FlatEquation,
    consts: dict[Any, Any],
    results: Sequence[Any] | None = None,
) -> FlatEquation:
    """Return one equation, a call, that computes a function.

    Args:
        operands: variables.
        like: an equation with the guards and the line of the new one.
        consts: receives the arrays that the function closes over.
        results: the variables of the results; by default new ones.
    """
    call = jax.jit(function, compiler_options=None)  # only for an outermost call
    traced = jax.make_jaxpr(call)(*(abstract(var.aval) for var in operands))
    inputs = dict(zip(traced.jaxpr.invars, operands, strict=True))
    for var, value in zip(traced.jaxpr.constvars, traced.consts, strict=True):
        inputs[var] = core.Var(var.aval)
        consts[inputs[var]] = value
    (eqn,) = traced.jaxpr.eqns
    invars = [x if isinstance(x, core.Literal) else inputs[x] for x in eqn.invars]
    if results is None:
        results = [core.Var(var.aval) for var in eqn.outvars]
    source = like.eqn.source_info
    return replace(
        like, eqn=eqn.replace(invars=invars, outvars=list(results), source_info=source)
    )


def abstract(aval: Any) -> Any:
    """Return the shape and the dtype of an abstract value, to trace a function."""
    struct: Any = jax.ShapeDtypeStruct  # ShapeDtypeStruct has no type hints
    return struct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))
