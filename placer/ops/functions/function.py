"""Traces a function for a number of rows, cuts it into regions, and runs one of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from placer.errors import PlacerError
from placer.ops.functions.arguments import Template, read_arguments
from placer.ops.functions.batch_types import TRACE_BATCHES, abstract_values
from placer.ops.functions.complex_values import is_complex
from placer.ops.functions.cut import Cut, cut
from placer.ops.functions.fingerprint import fingerprint, has_fingerprint
from placer.ops.functions.flatten import flatten, source_line
from placer.ops.functions.random_draws import check_draws
from placer.ops.functions.state import (
    Leaves,
    changed_leaves,
    leaves_by_path,
    state_change_error,
    watch_state,
)
from placer.place.types import TensorType


@dataclass(frozen=True, slots=True, eq=False)
class TracedFunction:
    """A function cut into regions, and the pytree of its results."""

    cut: Cut
    arguments: Template
    results: Any


def trace_function(fn: Callable[..., Any], text: str, rows: int) -> TracedFunction:
    """Trace a function for a batch of `rows` rows, and cut it into regions.

    `text` holds its arguments (`placer.ops.functions.arguments`). Raises PlacerError if
    the function cannot be cut. Errors of the function propagate.
    """
    widest = str(jax.dtypes.canonicalize_dtype("float64"))
    return _trace_function(fn, text, rows, widest)


def is_deterministic(fn: Callable[..., Any], text: str, rows: int) -> bool:
    """Return True if a second trace of the function has the same equations."""
    not_cached = _trace_function.__wrapped__
    both = trace_function(fn, text, rows), not_cached(fn, text, rows, "")
    first, again = ([fingerprint(each) for each in one.cut.regions] for one in both)
    return first == again


@lru_cache(maxsize=64)
def _trace_function(
    fn: Callable[..., Any], text: str, rows: int, widest: str
) -> TracedFunction:
    del widest  # widest is only part of the cache key
    arguments = read_arguments(fn, text)

    with watch_state() as state_errors:
        closed, results, changes = _make_jaxpr(fn, arguments, rows)
    has_rows = [kind.has_batch for kind in arguments.types]
    check_draws(closed, has_rows)
    if state_errors:
        raise state_errors[0]
    if changes:
        raise state_change_error(next(iter(changes)), _change_line(fn, arguments, rows))
    debug = closed.jaxpr.debug_info._replace(arg_names=None, result_paths=None)
    return TracedFunction(cut(flatten(closed), has_rows, debug), arguments, results)


def _make_jaxpr(
    fn: Callable[..., Any], arguments: Template, rows: int, *, changes: bool = False
) -> tuple[Any, Any, Leaves]:
    """Return a function's jaxpr, its results, and the arguments that it changes."""
    changed: Leaves = {}

    def of_values(*values: Any) -> Any:
        args = arguments.fill(iter(values))
        before = leaves_by_path(fn, args)
        results = _check_arrays(fn, fn(*args))
        changed.update(changed_leaves(before, leaves_by_path(fn, args)))
        # With `changes`, the equations show the line of the first change.
        return next(iter(changed.values())) if changes else results

    # JAX's messages name the traced function and its line; let them name `fn`.
    of_values.__wrapped__ = inspect.unwrap(fn)  # type: ignore[attr-defined]
    traced = jax.make_jaxpr(of_values, return_shape=True)
    closed, results = traced(*abstract_values(arguments.types, rows))
    return closed, results, changed


def _change_line(fn: Callable[..., Any], arguments: Template, rows: int) -> str:
    """Return the line that changes an argument; empty if it is unknown."""
    try:
        closed, _, _ = _make_jaxpr(fn, arguments, rows, changes=True)
    except (TypeError, jax.errors.JAXTypeError):
        return ""
    changed = set(map(id, closed.jaxpr.outvars))
    for eqn in closed.jaxpr.eqns:
        if changed.intersection(map(id, eqn.outvars)):
            return source_line(eqn)
    return ""


def _check_arrays(fn: Callable[..., Any], results: Any) -> Any:
    """Return the results; raise PlacerError unless they are arrays."""
    leaves = jax.tree.leaves(results)
    if not leaves:
        hint = "end the function with `return` and its results"
        raise PlacerError(f"'{fn.__name__}' returns nothing", hint=hint)
    for leaf in leaves:
        if not isinstance(leaf, jax.Array | np.ndarray):
            raise PlacerError(
                f"'{fn.__name__}' returns {leaf!r:.64}, which is not an array",
                hint="return only arrays; compute other values outside of the function",
            )
        if is_complex(leaf):
            raise PlacerError(
                f"'{fn.__name__}' returns an array of {leaf.dtype}, but values of a"
                " program are real",
                hint="return its parts: y.real, y.imag",
            )
    return results


def run_region(
    fn: Callable[..., Any],
    text: str,
    region: int,
    rows: int,
    inputs: Sequence[jax.Array],
    expected: str,
) -> list[jax.Array]:
    """Compute the results of a region.

    Args:
        text: the arguments of `fn`.
        expected: the fingerprint of the compiled region (`fingerprint_of`), or empty.

    Raises:
        PlacerError: if the region has another fingerprint, or the function has no such
            region for `rows` rows.
    """
    if expected and not _is_expected(fn, text, region, expected):
        raise PlacerError(
            f"{fn.__name__} is not the function that was compiled",
            hint="make its file the same in each import: seed np.random, sort sets,"
            " and check that the importing code does not change it",
        )
    regions = trace_function(fn, text, rows).cut.regions
    if region >= len(regions):
        raise PlacerError(
            f"{fn.__name__} has no region {region} for {rows} rows, only {len(regions)}",
            hint=_ROWS_HINT,
        )
    chosen = regions[region]
    wanted = [TensorType(str(x.dtype), x.shape) for x in chosen.closed.in_avals]
    actual = [TensorType(str(x.dtype), x.shape) for x in inputs]
    if wanted != actual:
        types = f"{', '.join(map(str, wanted))}, not {', '.join(map(str, actual))}"
        raise PlacerError(
            f"region {region} of {fn.__name__} takes {types} for {rows} rows",
            hint=_ROWS_HINT,
        )
    return chosen(*inputs)


def fingerprint_of(fn: Callable[..., Any], text: str, region: int) -> str:
    """Return the fingerprint of a region, for other processes to compare."""
    return fingerprint(trace_function(fn, text, TRACE_BATCHES[0]).cut.regions[region])


@lru_cache(maxsize=256)
def _is_expected(fn: Callable[..., Any], text: str, region: int, expected: str) -> bool:
    regions = trace_function(fn, text, TRACE_BATCHES[0]).cut.regions
    return region < len(regions) and has_fingerprint(regions[region], expected)


_ROWS_HINT = "trace the same operations for every number of rows"
