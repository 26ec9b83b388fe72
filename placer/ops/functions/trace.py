"""Traces a function to a flat jaxpr, and refuses changes of arguments that would be lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax

from placer.errors import PlacerError
from placer.ops.functions.arguments import (
    open_parameters,
    read_arguments,
    state_argument,
    state_paths,
)
from placer.ops.functions.batch_types import TRACE_BATCHES
from placer.ops.functions.changed_state import (
    hint_of_change,
    state_change_error,
    watch_state,
)
from placer.ops.functions.flatten import FlatJaxpr, flatten_guards
from placer.ops.functions.jaxpr import make_jaxpr
from placer.ops.functions.mode import TRAINING, Mode, widest_float
from placer.ops.functions.random_draws import FROM_BATCH, FROM_KEY, check_draws
from placer.ops.functions.replica_axis import inner_collective
from placer.ops.functions.template import Template
from placer.ops.functions.user_lines import source_line
from placer.place.types import BATCH


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """A function's equations. The last input of `flat` is the key of the step."""

    flat: FlatJaxpr
    arguments: Template
    results: Any
    state: int
    has_rows: Sequence[bool]
    debug: Any


def make_trace(
    fn: Callable[..., Any], text: str, rows: int, mode: Mode, *, again: bool = False
) -> Trace:
    """Trace a function for `rows` rows; see `trace_function`.

    Unless `again`, the result may be an earlier one.
    """
    # Draws are split by rows later.
    made = _trace.__wrapped__ if again else _trace
    return made(fn, text, rows, replace(mode, by_rows=False), widest_float())


@lru_cache(maxsize=64)
def _trace(
    fn: Callable[..., Any], text: str, rows: int, mode: Mode, widest: str
) -> Trace:
    del widest  # widest is only part of the cache key
    training = mode.training
    arguments = read_arguments(fn, text, training)
    if mode.parts:
        _check_first_axes(arguments)
    state = state_paths(fn, text)
    with watch_state() as state_errors:
        at = state_argument(text)
        closed, results, changes = make_jaxpr(
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
    flat = flatten_guards(closed, _is_split(mode))
    return Trace(flat, arguments, results, count, has_rows, debug)


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
    _, _, changes = make_jaxpr(fn, arguments, TRACE_BATCHES[0], mode, state_at=at)
    return list(changes)


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
        closed, _, _ = make_jaxpr(fn, arguments, rows, mode, (), state_at, change=path)
    except (TypeError, jax.errors.JAXTypeError):
        return ""
    changed = set(map(id, closed.jaxpr.outvars))
    for eqn in closed.jaxpr.eqns:
        if changed.intersection(map(id, eqn.outvars)):
            return source_line(eqn)
    return ""
