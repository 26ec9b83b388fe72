"""Describes an optax optimizer for the plan."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from placer.errors import PlacerError
from placer.ops.functions.fingerprint import fingerprint_of_jaxpr
from placer.ops.functions.primitives import open_jaxpr
from placer.ops.transformations.clip import without_clip
from placer.ops.transformations.config import Make, takes_rate
from placer.ops.transformations.equations import Equations
from placer.ops.transformations.ownership import NOT_ELEMENTWISE, find_owners
from placer.ops.transformations.trace import Traced, Types, trace, trace_again
from placer.plan.settings.training.transformations import Leaf, Transformation


def describe(
    make: Make,
    types: Types,
    *,
    fn: str,
    config: str = "",
    averaged: Callable[..., Any] | None = None,
    eval_params: str = "",
    wide: bool,
) -> Transformation:
    """Trace an optax optimizer on the whole tree of its parameters, and describe it.

    Args:
        make: returns the `GradientTransformation` (`with_config`). A parameter
            `learning_rate` receives the learning rate of the step.
        types: the types of the parameters by name, in the order of the graph.
        fn: the text of the function, as `MODULE:NAME`.
        config: its arguments by name, as JSON.
        averaged: returns the values for evaluations from the state and the parameters.
        eval_params: the text of `averaged`, as `MODULE:NAME`.
        wide: whether the precision is float64.

    Raises:
        PlacerError: if placer cannot run the optimizer. Errors of the functions propagate.
    """
    first = trace(make, types, averaged, wide)
    if fingerprint(first) != fingerprint(trace_again(make, types, averaged, wide)):
        raise PlacerError(
            "its traces differ: it draws from np.random or random, or changes a global"
            " value",
            hint="create such numbers at the top of its file, keep what changes in the"
            " state, and use learning_rate or a schedule of optax",
        )
    traced = without_clip(first, wide)
    owners = find_owners(traced)
    leaves = [
        Leaf(
            name=name,
            kind=kind,
            dtype=leaf.dtype,
            shape=leaf.shape,
            parameter="" if owner is None else traced.names[owner],
        )
        for leaf, owner, kind, name in zip(
            traced.leaves, owners.owners, owners.kinds, owners.names, strict=True
        )
    ]
    return Transformation(
        fn=fn,
        config=config,
        takes_rate=takes_rate(make),
        parameters=traced.names,
        leaves=tuple(leaves),
        whole={traced.names[i]: NOT_ELEMENTWISE for i in owners.whole},
        together=tuple(
            tuple(traced.names[i] for i in group) for group in owners.together
        ),
        clip=traced.clip,
        fingerprint=fingerprint(traced),
        flops=_flops_per_element(traced),
        eval_params=eval_params,
    )


def trace_without_clip(
    make: Make, types: Types, averaged: Callable[..., Any] | None, wide: bool
) -> Traced:
    """Trace an optimizer, without `clip_by_global_norm` at the top of its chain."""
    return without_clip(trace(make, types, averaged, wide), wide)


def fingerprint(traced: Traced) -> str:
    """Return a digest of the equations, as one line of text."""
    text = repr((traced.clip, traced.names, traced.leaves))
    each = [traced.init, traced.update]
    if traced.averaged is not None:
        each.append(traced.averaged)
    return "; ".join(fingerprint_of_jaxpr(e.closed(), text) for e in each)


def _flops_per_element(traced: Traced) -> int:
    elements = sum(prod(traced.shape(i)) for i in range(len(traced.names)))
    return round(_flops(traced.update) / max(1, elements))


def _flops(equations: Equations) -> int:
    return sum(
        max(map(_flops, equations.branches[i]))
        if i in equations.branches
        else _flops_of(eqn)
        for i, eqn in enumerate(equations.eqns)
    )


def _flops_of(eqn: Any) -> int:
    """Return the FLOPs of an equation: of products, of loops, else one per result."""
    name, params = eqn.primitive.name, eqn.params
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        left = eqn.invars[0].aval.shape
        inner = prod(left[i] for i in contracted)
        return int(2 * prod(eqn.outvars[0].aval.shape) * inner)
    if name == "scan":
        jaxpr, _ = open_jaxpr(params["jaxpr"])
        return int(params["length"]) * sum(map(_flops_of, jaxpr.eqns))
    if name in _FREE:
        return 0
    return sum(prod(getattr(var.aval, "shape", ())) for var in eqn.outvars)


_FREE = {"broadcast_in_dim", "convert_element_type", "copy", "reshape", "squeeze"}
"""Primitives that compute nothing."""
