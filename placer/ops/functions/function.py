"""Traces a function for a number of rows, cuts it into regions, and runs one of them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from placer.errors import PlacerError
from placer.ops.functions.arguments import (
    StreamLeaf,
    Template,
    open_parameters,
    read_arguments,
    state_argument,
    state_paths,
)
from placer.ops.functions.batch_types import TRACE_BATCHES, abstract_values
from placer.ops.functions.complex_values import is_complex
from placer.ops.functions.cut import Cut, ValueSource, cut
from placer.ops.functions.fingerprint import fingerprint, has_fingerprint
from placer.ops.functions.flatten import FlatJaxpr, flatten, source_line
from placer.ops.functions.paths import leaves_with_paths
from placer.ops.functions.random_draws import (
    FROM_BATCH,
    FROM_KEY,
    check_draws,
)
from placer.ops.functions.replica import make_parted
from placer.ops.functions.replica_axis import inner_collective
from placer.ops.functions.replica_binding import refuse_second_binding
from placer.ops.functions.replica_regions import compute_parts, shape_of_parts
from placer.ops.functions.row_draws import draw_by_row, draws_random_numbers
from placer.ops.functions.state import (
    Leaves,
    changed_leaves,
    hint_of_change,
    leaves_by_path,
    state_change_error,
    watch_state,
)
from placer.place.types import BATCH, TensorType


@dataclass(frozen=True, slots=True)
class Mode:
    """How a function is traced.

    Attributes:
        training: for training steps, not for evaluations.
        by_rows: random numbers are drawn for each row of the batch.
        parts: if not 0, the function computes one of this many parts of the batch.
        axis: the name of the axis over the parts.
    """

    training: bool = False
    by_rows: bool = False
    parts: int = 0
    axis: str = ""


EVALUATION, TRAINING = Mode(), Mode(training=True)


@dataclass(frozen=True, slots=True, eq=False)
class TracedFunction:
    """A function cut into regions, and the pytree of its results.

    Attributes:
        cut: the regions, and the sources of the results; in training, the new values of
            the state come last.
        state: the number of these values.
    """

    cut: Cut
    arguments: Template
    results: Any
    state: int


@dataclass(frozen=True, slots=True, eq=False)
class _Trace:
    """A function's equations. The last input of `flat` is the key of the step."""

    flat: FlatJaxpr
    arguments: Template
    results: Any
    state: int
    has_rows: Sequence[bool]
    debug: Any


def trace_function(
    fn: Callable[..., Any],
    text: str,
    rows: int,
    mode: Mode = EVALUATION,
    other_rows: int | None = None,
) -> TracedFunction:
    """Trace a function for a batch of `rows` rows, and cut it into regions.

    Draws that have rows are found by comparison with the trace for `other_rows` rows. Pass
    a number for which the function is traced anyway. If the mode has parts, both are
    numbers of rows of one part.

    `text` holds its arguments (`placer.ops.functions.arguments`). A parameter `key` or
    `training` of the function that the arguments leave open is passed as well: the key of
    the step, and whether it is traced for training. Raises PlacerError if the function
    cannot be cut. Errors of the function propagate.
    """
    if other_rows is None or other_rows == rows:
        other_rows = next(each for each in TRACE_BATCHES if each != rows)
    return _cut_function(fn, text, rows, mode, other_rows, _widest())


def is_deterministic(
    fn: Callable[..., Any], text: str, rows: int, mode: Mode = EVALUATION
) -> bool:
    """Return True if a second trace of the function has the same equations."""
    other = next(each for each in TRACE_BATCHES if each != rows)
    first = _trace(fn, text, rows, _unsplit(mode), _widest())
    again = _trace.__wrapped__(fn, text, rows, _unsplit(mode), "")
    of_first, of_second = (
        [fingerprint(each) for each in _cut(one, fn, text, (rows, other), mode).regions]
        for one in (first, again)
    )
    return of_first == of_second


def _widest() -> str:
    """Return the widest float, a part of the keys of caches."""
    return str(jax.dtypes.canonicalize_dtype("float64"))


@lru_cache(maxsize=64)
def _cut_function(
    fn: Callable[..., Any], text: str, rows: int, mode: Mode, other: int, widest: str
) -> TracedFunction:
    del widest  # widest is only part of the cache key
    trace = _trace(fn, text, rows, _unsplit(mode), _widest())
    regions = _cut(trace, fn, text, (rows, other), mode)
    return TracedFunction(regions, trace.arguments, trace.results, trace.state)


def _unsplit(mode: Mode) -> Mode:
    """Return the mode that a trace before the cut depends on."""
    return replace(mode, by_rows=False)


def _cut(
    trace: _Trace,
    fn: Callable[..., Any],
    text: str,
    batches: tuple[int, int],
    mode: Mode,
) -> Cut:
    """Cut a trace for `batches[0]` rows by comparison with one for `batches[1]` rows."""
    flat, has_rows = trace.flat, trace.has_rows
    if mode.parts:
        twin = _trace(fn, text, batches[1], _unsplit(mode), _widest())
        parted = make_parted(
            flat, twin.flat, has_rows, mode.parts, mode.axis, trace.state
        )
        return cut(parted.flat, has_rows, trace.debug, parted)
    if mode.by_rows and draws_random_numbers(flat):
        twin = _trace(fn, text, batches[1], _unsplit(mode), _widest())
        flat = draw_by_row(flat, twin.flat, batches)
    return cut(flat, has_rows, trace.debug)


@lru_cache(maxsize=64)
def _trace(
    fn: Callable[..., Any], text: str, rows: int, mode: Mode, widest: str
) -> _Trace:
    del widest  # widest is only part of the cache key
    training = mode.training
    arguments = read_arguments(fn, text, training)
    if mode.parts:
        _check_first_axes(arguments)
    state = state_paths(fn, text)
    with watch_state() as state_errors:
        at = state_argument(text)
        closed, results, changes = _make_jaxpr(
            fn, arguments, rows, mode, state if training else (), at
        )
    has_rows = [kind.has_batch for kind in arguments.types]
    # Parameters and state differ between steps.
    origins = [FROM_BATCH if each else FROM_KEY for each in has_rows]
    check_draws(closed, [*origins, FROM_KEY], training)
    if training or not may_differ(fn, text):  # an evaluation drops changes
        if state_errors and at is None:
            raise state_errors[0]
        lost = [path for path in changes if path not in state]
        if lost:
            line = _change_line(fn, arguments, rows, mode, at, lost[0])
            raise state_change_error(lost[0], line, hint_of_change(arguments.pytrees()))
    debug = closed.jaxpr.debug_info._replace(arg_names=None, result_paths=None)
    count = len(state) if training else 0
    flat = flatten(closed, _is_split(mode))
    return _Trace(flat, arguments, results, count, has_rows, debug)


def _is_split(mode: Mode) -> Callable[[Any], bool]:
    """Return a function that says whether a call must be inlined."""
    if not mode.parts:
        return lambda eqn: False
    # A reduction over the parts cuts the function, so no call may contain it.
    return lambda eqn: inner_collective(eqn, mode.axis) is not None


def _check_first_axes(arguments: Template) -> None:
    for kind in arguments.types:
        if kind.has_batch and (not kind.has_rows or kind.shape.count(BATCH) > 1):
            raise PlacerError(
                f"an argument is {kind}, but parts of a batch need the batch as the first"
                " axis, and only there",
                hint="transpose it before the call",
            )


def may_differ(fn: Callable[..., Any], text: str) -> bool:
    """Return True if a function could do something else in training than in evaluation."""
    return '{"make"' in text or bool(open_parameters(fn, len(json.loads(text))))


def assigned_paths(
    fn: Callable[..., Any], text: str, mode: Mode = TRAINING
) -> list[str]:
    """Return the paths of leaves of arguments that a function changes in training."""
    arguments = read_arguments(fn, text, training=True)
    at = state_argument(text)
    _, _, changes = _make_jaxpr(fn, arguments, TRACE_BATCHES[0], mode, state_at=at)
    return list(changes)


def _make_jaxpr(
    fn: Callable[..., Any],
    arguments: Template,
    rows: int,
    mode: Mode,
    state: Sequence[str] = (),
    state_at: int | None = None,
    *,
    change: str | None = None,
) -> tuple[Any, Any, Leaves]:
    """Return a function's jaxpr, its results, and the arguments that it changes.

    The jaxpr also returns the new values of `state`. With `state_at`, the function returns
    a new value of this argument after its results. With `change`, it returns only the
    new value of this leaf.
    """
    changed: Leaves = {}
    training = mode.training
    # The unfilled arguments have a `StreamLeaf` for each seed generator of Keras.
    unfilled, _ = leaves_by_path(fn, arguments.fill(iter(arguments.types)))
    seeds = {path for path, x in unfilled.items() if isinstance(x, StreamLeaf)}

    def of_values(*inputs: Any) -> Any:
        *values, key = inputs
        args = arguments.fill(iter(values), key)
        before = leaves_by_path(fn, args)
        passed = {"key": key, "training": training}
        keywords = {name: passed[name] for name in open_parameters(fn, len(args))}
        returned = fn(*args, **keywords)
        after = leaves_by_path(fn, args)
        if state_at is not None:
            returned, new = _check_pair(fn, returned)
            if training:
                name = list(inspect.signature(fn).parameters)[state_at]
                after[0].update(_new_leaves(fn, name, new, before[0]))
        results = _check_arrays(fn, returned)
        new_values = changed_leaves(before, after)
        changed.update({k: x for k, x in new_values.items() if k not in seeds})
        if change is not None:
            return changed[change]
        return results, [_same_type(x, before[0][x], after[0][x]) for x in state]

    # JAX's messages name the traced function and its line; let them name `fn`.
    of_values.__wrapped__ = inspect.unwrap(fn)  # type: ignore[attr-defined]
    key = jax.eval_shape(lambda: jax.random.key(0))
    inputs = *abstract_values(arguments.types, rows), key
    if mode.parts:
        axes = [(mode.axis, mode.parts)]
        traced = jax.make_jaxpr(of_values, axis_env=axes, return_shape=True)
        with refuse_second_binding(mode.axis):
            closed, returned = traced(*inputs)
    else:
        closed, returned = jax.make_jaxpr(of_values, return_shape=True)(*inputs)
    results = returned if change is not None else returned[0]
    return closed, results, changed


def _check_pair(fn: Callable[..., Any], returned: Any) -> tuple[Any, Any]:
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise PlacerError(
            f"'{fn.__name__}' must return its results and its new state",
            hint="end the function with `return results, new_state`",
        )
    return returned


def _new_leaves(
    fn: Callable[..., Any], name: str, new: Any, old: Mapping[str, Any]
) -> Leaves:
    """Return the leaves of a new state by path."""
    leaves = {".".join((name, *path)): leaf for path, leaf in leaves_with_paths(new)}
    for path in leaves:
        if path not in old:
            raise PlacerError(
                f"'{fn.__name__}' returns the state {path}, which its argument does not"
                " have",
                hint=f"return the new value of {name}, or a part of it with the same keys",
            )
    return leaves


def _same_type(path: str, old: Any, new: Any) -> Any:
    """Return the new value of a state; raise PlacerError if its type differs."""
    if not hasattr(new, "dtype") and not isinstance(new, bool | int | float):
        raise PlacerError(
            f"{path} is an array, but the function assigns {new!r:.64}",
            hint="assign an array of the same type and shape",
        )
    new = jax.numpy.asarray(new)
    if (new.dtype, new.shape) != (old.dtype, old.shape):
        raise PlacerError(
            f"{path} is {old.dtype}{list(old.shape)}, but the function assigns"
            f" {new.dtype}{list(new.shape)}",
            hint=f"keep the type of a state: write .astype('{old.dtype}')"
            if new.shape == old.shape
            else "keep the type and the shape of a state",
        )
    # An equation for each state: two of them may have the same value, or a constant.
    return jax.numpy.copy(new)


def _change_line(
    fn: Callable[..., Any],
    arguments: Template,
    rows: int,
    mode: Mode,
    state_at: int | None,
    path: str,
) -> str:
    """Return the line that changes an argument; empty if it is unknown."""
    try:
        closed, _, _ = _make_jaxpr(fn, arguments, rows, mode, (), state_at, change=path)
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
    mode: Mode = EVALUATION,
    random: Callable[[ValueSource], Any] | None = None,
    count: int = 1,
) -> list[jax.Array]:
    """Compute the results of a region.

    Args:
        text: the arguments of `fn`.
        rows: the number of rows; if the mode has parts, of each part.
        count: the number of parts in `inputs`.
        expected: the fingerprint of the compiled region (`fingerprint_of`), or empty.
        random: returns the key of the step (`STEP_KEY`), or the numbers of the rows
            (`ROW_NUMBERS`), for regions that draw random numbers. If the mode has parts,
            it returns the key or the number (`PART_NUMBER`) of each part.

    Raises:
        PlacerError: if the region has another fingerprint, or the function has no such
            region for `rows` rows.
    """
    if expected and not _is_expected(fn, text, region, rows, expected, mode):
        raise PlacerError(
            f"{fn.__name__} is not the function that was compiled",
            hint="make its file the same in each import: seed np.random, sort sets,"
            " and check that the importing code does not change it",
        )
    regions = trace_function(fn, text, rows, mode).cut.regions
    if region >= len(regions):
        raise PlacerError(
            f"{fn.__name__} has no region {region} for {rows} rows, only {len(regions)}",
            hint=_ROWS_HINT,
        )
    chosen = regions[region]
    values = chosen.closed.in_avals[: len(chosen.operands)]
    split = chosen.split
    shapes = [x.shape for x in values]
    if split is not None:
        kinds = zip(shapes, split.operands, strict=True)
        shapes = [shape_of_parts(*pair, count, rows) for pair in kinds]
    pairs = zip(values, shapes, strict=True)
    wanted = [TensorType(str(x.dtype), shape) for x, shape in pairs]
    actual = [TensorType(str(x.dtype), x.shape) for x in inputs]
    if wanted != actual:
        types = f"{', '.join(map(str, wanted))}, not {', '.join(map(str, actual))}"
        raise PlacerError(
            f"region {region} of {fn.__name__} takes {types} for {rows} rows",
            hint=_ROWS_HINT,
        )
    assert random is not None or not chosen.random, "the region draws random numbers"
    drawn = [random(each) for each in chosen.random] if random is not None else []
    if split is None:
        return chosen(*inputs, *drawn)
    return compute_parts(chosen.closed, split, count, rows, inputs, drawn)


def fingerprint_of(
    fn: Callable[..., Any], text: str, region: int, mode: Mode = EVALUATION
) -> str:
    """Return the fingerprint of a region, for other processes to compare."""
    regions = trace_function(fn, text, TRACE_BATCHES[0], mode).cut.regions
    return fingerprint(regions[region])


@lru_cache(maxsize=256)
def _is_expected(
    fn: Callable[..., Any],
    text: str,
    region: int,
    rows: int,
    expected: str,
    mode: Mode,
) -> bool:
    regions = trace_function(fn, text, TRACE_BATCHES[0], mode, rows).cut.regions
    return region < len(regions) and has_fingerprint(regions[region], expected)


_ROWS_HINT = "trace the same operations for every number of rows"
