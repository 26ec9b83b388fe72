"""Traces a function for a number of rows, and cuts it into regions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from placer.ops.functions.batch_types import TRACE_BATCHES
from placer.ops.functions.cut import Cut, cut
from placer.ops.functions.fingerprint import fingerprint
from placer.ops.functions.mode import EVALUATION, Mode, widest_float
from placer.ops.functions.replica import make_parted
from placer.ops.functions.row_draws import draw_by_row, draws_random_numbers
from placer.ops.functions.template import Template
from placer.ops.functions.trace import Trace, make_trace


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
    return _cut_function(fn, text, rows, mode, other_rows, widest_float())


def is_deterministic(
    fn: Callable[..., Any], text: str, rows: int, mode: Mode = EVALUATION
) -> bool:
    """Return True if a second trace of the function has the same equations."""
    other = next(each for each in TRACE_BATCHES if each != rows)
    first = make_trace(fn, text, rows, mode)
    again = make_trace(fn, text, rows, mode, again=True)
    of_first, of_second = (
        [fingerprint(each) for each in _cut(one, fn, text, (rows, other), mode).regions]
        for one in (first, again)
    )
    return of_first == of_second


@lru_cache(maxsize=64)
def _cut_function(
    fn: Callable[..., Any], text: str, rows: int, mode: Mode, other: int, widest: str
) -> TracedFunction:
    del widest  # widest is only part of the cache key
    trace = make_trace(fn, text, rows, mode)
    regions = _cut(trace, fn, text, (rows, other), mode)
    return TracedFunction(regions, trace.arguments, trace.results, trace.state)


def _cut(
    trace: Trace,
    fn: Callable[..., Any],
    text: str,
    batches: tuple[int, int],
    mode: Mode,
) -> Cut:
    """Cut a trace for `batches[0]` rows by comparison with one for `batches[1]` rows."""
    flat, has_rows = trace.flat, trace.has_rows
    if mode.parts:
        twin = make_trace(fn, text, batches[1], mode)
        parted = make_parted(
            flat, twin.flat, has_rows, mode.parts, mode.axis, trace.state
        )
        return cut(parted.flat, has_rows, trace.debug, parted)
    if mode.by_rows and draws_random_numbers(flat):
        twin = make_trace(fn, text, batches[1], mode)
        flat = draw_by_row(flat, twin.flat, batches)
    return cut(flat, has_rows, trace.debug)
