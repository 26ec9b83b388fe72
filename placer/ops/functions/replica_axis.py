"""Finds the collectives over the parts of a batch among equations."""

from __future__ import annotations

from typing import Any

from jax.extend import core

from placer.errors import PlacerError
from placer.ops.functions.primitives import open_jaxpr
from placer.ops.functions.user_lines import source_line

OUTSIDE = (
    "call it outside of scan, while, cond and functions with their own derivative, such as"
    " by a Python loop over layers"
)
"""The hint for a collective that cannot be split."""


def names_axis(eqn: Any, axis: str) -> bool:
    """Return True if an equation itself is a collective over the axis."""
    for key in ("axes", "axis_name"):
        names = eqn.params.get(key, ())
        if axis in (names if isinstance(names, tuple) else (names,)):
            return True
    return False


def inner_collective(eqn: Any, axis: str) -> Any:
    """Return an equation inside another one that is a collective over the axis, or None."""
    for jaxpr in core.jaxprs_in_params(eqn.params):
        for inner in open_jaxpr(jaxpr)[0].eqns:
            found = inner if names_axis(inner, axis) else inner_collective(inner, axis)
            if found is not None:
                return found
    return None


def check_outermost(eqn: Any, axis: str) -> None:
    """Raise PlacerError if an equation contains a collective over the axis."""
    inner = inner_collective(eqn, axis)
    if inner is not None:
        raise PlacerError(
            f"'{inner.primitive.name}'{source_line(inner)} over the axis '{axis}' is"
            f" inside '{eqn.primitive.name}'{source_line(eqn)}",
            hint=OUTSIDE,
        )
