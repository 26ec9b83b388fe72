"""Finds `optax.clip_by_global_norm` at the beginning of an update.

placer computes this norm over all nodes, so that the rest of the update may still run
element by element.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
from jax.extend import core

from placer.ops.transformations.compare import match_equations
from placer.ops.transformations.equations import Equations, inline_calls
from placer.ops.transformations.trace import Traced


def without_clip(traced: Traced, wide: bool) -> Traced:
    """Return an optimizer without a `clip_by_global_norm` that all gradients pass first.

    Its gradients are then the clipped ones, and `clip` is the bound. Otherwise the
    optimizer is returned as it is.
    """
    optax = sys.modules.get("optax")
    if optax is None:
        return traced
    update = traced.update
    inputs = traced.inputs_of(update)
    structs = [
        jax.ShapeDtypeStruct(kind.shape, kind.dtype) for kind in traced.types.values()
    ]
    for bound in _bounds(update):
        clip = optax.clip_by_global_norm(bound)

        def clipped(values: Any, clip: Any = clip) -> Any:
            tree = dict(zip(traced.names, values, strict=True))
            result, _ = clip.update(tree, clip.init(tree))
            return [result[name] for name in traced.names]

        with jax.enable_x64(wide):
            pattern = inline_calls(jax.make_jaxpr(clipped)(structs))
        found = match_equations(pattern, update, inputs.gradients)
        if not any(var in found for var in pattern.results):
            continue
        # The update does not compute a clipped gradient that it does not use, such as that of
        # a frozen parameter.
        after = [found.get(var) or core.Var(var.aval) for var in pattern.results]
        rest = update.part(
            update.results, [*after, *inputs.leaves, *inputs.values, *inputs.rate]
        )
        if _is_complete(rest):
            return replace(traced, update=rest, clip=bound)
    return traced


def _bounds(update: Equations) -> Iterator[float]:
    """Yield the numbers that could be the bound of a norm: those compared with a scalar.

    The op that clips accepts only finite numbers above 0.
    """
    seen = set()
    for eqn in update.eqns:
        if eqn.primitive.name == "lt" and eqn.outvars[0].aval.shape == ():
            literal = eqn.invars[1]
            bound = float(literal.val) if isinstance(literal, core.Literal) else 0.0
            if 0 < bound < float("inf") and bound not in seen:
                seen.add(bound)
                yield bound


def _is_complete(equations: Equations) -> bool:
    """Return True if the equations use only their inputs, and values that they compute."""
    known = {*equations.inputs, *equations.consts}
    for eqn in equations.eqns:
        if any(not isinstance(a, core.Literal) and a not in known for a in eqn.invars):
            return False
        known.update(eqn.outvars)
    return all(isinstance(a, core.Literal) or a in known for a in equations.results)
