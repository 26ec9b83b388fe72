"""Facts about primitives of JAX that contain jaxprs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CALLS = {"jit", "pjit", "remat", "remat2", "checkpoint"}
"""Primitives that only compute the equations in their parameter `jaxpr`.

Their derivatives are those of the equations, unlike those of `custom_jvp_call`.
"""


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """Return the numbers of constant and of carried operands of a `scan`.

    The remaining operands are scanned over. `params` are the equation's parameters.
    """
    if "num_consts" in params:  # as in JAX 0.10
        return params["num_consts"], params["num_carry"]
    consts, carried, _ = params["ft_in"].unpack()
    return len(consts), len(carried)


def open_jaxpr(jaxpr: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the jaxpr of an open or closed jaxpr, and the values of its constants."""
    return getattr(jaxpr, "jaxpr", jaxpr), tuple(getattr(jaxpr, "consts", ()))
