"""The axis over the parts of a batch, in the equations of a traced function."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
from jax.extend import core

from placer.errors import PlacerError
from placer.ops.functions.primitives import open_jaxpr
from placer.ops.functions.user_lines import caller_line, source_line


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
            hint="call it outside of scan, while, cond and functions with their own"
            " derivative, such as by a Python loop over layers",
        )


# Threads of one process may trace at the same time, and `jax.vmap` is replaced for all
# of them.
_vmap_lock = threading.RLock()


@contextmanager
def refuse_second_binding(fn: Callable[..., Any], axis: str) -> Iterator[None]:
    """Raise PlacerError if this thread maps over an axis with the same name.

    JAX would use the inner axis, so reductions would not reach the other parts.
    """
    values = getattr(inspect.unwrap(fn), "__globals__", {})
    thread = threading.get_ident()
    with _vmap_lock:
        original = jax.vmap
        parameters = inspect.signature(original)

        def vmap(*args: Any, **keywords: Any) -> Any:
            name = parameters.bind(*args, **keywords).arguments.get("axis_name")
            if name == axis and threading.get_ident() == thread:
                raise PlacerError(
                    f"vmap{caller_line()} binds the axis '{axis}' again, so reductions"
                    " inside would not reach the other parts of the batch",
                    hint='pass another name to placer.trace, such as axis="parts", and'
                    f' reduce over both: axis_name=("parts", "{axis}")',
                )
            return original(*args, **keywords)

        names = [name for name, value in values.items() if value is original]
        jax.vmap = vmap
        values.update(dict.fromkeys(names, vmap))
        try:
            yield
        finally:
            jax.vmap = original
            values.update(dict.fromkeys(names, original))
