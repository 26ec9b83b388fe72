"""A function traced for a number of rows, and cut."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from placer.errors import PlacerError
from placer.regions.arguments import Arguments, read
from placer.regions.batch_types import SIZES
from placer.regions.cut import Cut, cut
from placer.regions.fingerprint import is_like, likeness
from placer.regions.flatten import flatten, where
from placer.regions.random_draws import check_draws
from placer.regions.state import Leaves, changed, error, leaves, watched
from placer.types import TensorType


@dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """A function cut into regions, and the pytree of its results."""

    cut: Cut
    arguments: Arguments
    results: Any


def traced(fn: Callable[..., Any], text: str, rows: int) -> Traced:
    """The function on these arguments (`placer.regions.arguments`), whose batch has so
    many rows. Raises PlacerError where it cannot be cut, and what the function raises."""
    return _traced(fn, text, rows, str(jax.dtypes.canonicalize_dtype("float64")))


def is_repeated(fn: Callable[..., Any], text: str, rows: int) -> bool:
    """Whether the function, traced once more, is the same."""
    widest = str(jax.dtypes.canonicalize_dtype("float64"))
    both = _traced(fn, text, rows, widest), _traced.__wrapped__(fn, text, rows, widest)
    first, again = ([likeness(each) for each in one.cut.regions] for one in both)
    return first == again


@lru_cache(maxsize=64)
def _traced(fn: Callable[..., Any], text: str, rows: int, widest: str) -> Traced:
    del widest  # part of what is remembered
    arguments = read(fn, text)

    with watched() as elsewhere:
        closed, results, changes = _jaxpr(fn, arguments, rows)
    has_rows = [kind.has_batch for kind in arguments.types]
    check_draws(closed, has_rows)
    if elsewhere:
        raise elsewhere[0]
    if changes:
        raise error(next(iter(changes)), _line_of_change(fn, arguments, rows))
    debug = closed.jaxpr.debug_info._replace(arg_names=None, result_paths=None)
    return Traced(cut(flatten(closed), has_rows, debug), arguments, results)


def _jaxpr(
    fn: Callable[..., Any], arguments: Arguments, rows: int, *, changes: bool = False
) -> tuple[Any, Any, Leaves]:
    """The function's jaxpr, the pytree of its results, and what it changes of its
    arguments. With `changes` that is what the jaxpr gives."""
    found: Leaves = {}

    def of_values(*values: Any) -> Any:
        args = arguments.filled(values)
        before = leaves(fn, args)
        results = _arrays(fn, fn(*args))
        found.update(changed(before, leaves(fn, args)))
        return next(iter(found.values())) if changes else results

    # JAX's messages name what it traces, and where that stands.
    of_values.__wrapped__ = inspect.unwrap(fn)  # type: ignore[attr-defined]
    struct: Any = jax.ShapeDtypeStruct  # which has no types
    structs = [struct(kind.sizes(rows), kind.dtype) for kind in arguments.types]
    closed, results = jax.make_jaxpr(of_values, return_shape=True)(*structs)
    return closed, results, found


def _line_of_change(fn: Callable[..., Any], arguments: Arguments, rows: int) -> str:
    """The user's line that makes what an argument is changed to, where that is known: it
    is not of what is no array, or of another trace."""
    try:
        closed, _, _ = _jaxpr(fn, arguments, rows, changes=True)
    except (TypeError, jax.errors.JAXTypeError):
        return ""
    made = set(map(id, closed.jaxpr.outvars))
    for eqn in closed.jaxpr.eqns:
        if made.intersection(map(id, eqn.outvars)):
            return where(eqn)
    return ""


def _arrays(fn: Callable[..., Any], results: Any) -> Any:
    """The results, all of which are arrays."""
    leaves = jax.tree.leaves(results)
    if not leaves:
        hint = "end it with `return` and what it makes"
        raise PlacerError(f"'{fn.__name__}' returns nothing", hint=hint)
    for leaf in leaves:
        if not isinstance(leaf, jax.Array | np.ndarray):
            raise PlacerError(
                f"'{fn.__name__}' returns {leaf!r:.64}, which is no array",
                hint="return arrays alone; what else there is needs no trace",
            )
    return results


def run(
    fn: Callable[..., Any],
    text: str,
    region: int,
    rows: int,
    inputs: Sequence[jax.Array],
    same: str,
) -> list[jax.Array]:
    """What a region gives of its inputs. PlacerError where the function has no such
    region for so many rows, or is not the one of which `same` was written
    (`likeness_of`)."""
    if same and not _is_same(fn, text, region, same):
        raise PlacerError(
            f"{fn.__name__} is another function here than when it was compiled",
            hint="its file gives others each time, as np.random without a seed does, or"
            " goes through a set, or was changed by who imported it",
        )
    regions = traced(fn, text, rows).cut.regions
    if region >= len(regions):
        raise PlacerError(
            f"{fn.__name__} has no region {region} for {rows} rows, only {len(regions)}",
            hint=_HINT,
        )
    found = regions[region]
    wanted = [TensorType(str(v.aval.dtype), v.aval.shape) for v in _inputs(found)]
    given = [TensorType(str(x.dtype), x.shape) for x in inputs]
    if wanted != given:
        told = f"{', '.join(map(str, wanted))}, not {', '.join(map(str, given))}"
        raise PlacerError(
            f"region {region} of {fn.__name__} takes {told} for {rows} rows",
            hint=_HINT,
        )
    return found(*inputs)


def likeness_of(fn: Callable[..., Any], text: str, region: int) -> str:
    """What tells whether the region is the same in another process."""
    return likeness(traced(fn, text, SIZES[0]).cut.regions[region])


@lru_cache(maxsize=256)
def _is_same(fn: Callable[..., Any], text: str, region: int, same: str) -> bool:
    regions = traced(fn, text, SIZES[0]).cut.regions
    return region < len(regions) and is_like(regions[region], same)


def _inputs(region: Any) -> Sequence[Any]:
    invars: Sequence[Any] = region.closed.jaxpr.invars
    return invars


_HINT = "a function is traced for each number of rows, and must be the same for all"
