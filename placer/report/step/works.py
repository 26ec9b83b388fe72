"""Measures how long the program of each node works in a step."""

from __future__ import annotations

from typing import Final

import numpy as np

from placer.report.step.steps import spans_of
from placer.report.step.trace import OUTSIDE, Numbers, Thread, Trace
from placer.runtime.timeline.recorder import (
    COMPUTE,
    COPY,
    PROGRAM,
    READ,
    RECORD,
    ROWS,
    STEP,
    UPDATE,
)

WORK: Final = (COMPUTE, READ, UPDATE, ROWS, COPY, RECORD, STEP)
"""The categories in which a node works. In the others it waits, or moves messages."""


def works_of(trace: Trace) -> dict[str, dict[str, float]]:
    """Return the median seconds of a step in each category of work, by node.

    Only nodes count whose programs have steps.
    """
    found = {}
    for number, thread in enumerate(trace.threads):
        spans = spans_of(trace, number) if thread.name == PROGRAM else {}
        if spans:
            found[thread.node] = _works(trace, thread, sorted(spans.values()))
    return found


def _works(
    trace: Trace, thread: Thread, spans: list[tuple[int, int]]
) -> dict[str, float]:
    own = own_times(thread)
    begins = np.array([begin for begin, _ in spans])
    ends = np.array([end for _, end in spans])
    step = np.searchsorted(begins, thread.starts, "right") - 1
    inside = (step >= 0) & (thread.starts < ends[step])
    categories = np.array([label.category for label in trace.labels])[thread.labels]
    works = {}
    for category in WORK:
        chosen = inside & (categories == category)
        sums = np.bincount(step[chosen], own[chosen], len(spans))
        works[category] = float(np.median(sums)) / 1e9
    return works


def own_times(thread: Thread) -> Numbers:
    """Return the nanoseconds of each slice without its inner slices."""
    durations = thread.ends - thread.starts
    own = durations.copy()
    inner = thread.parents != OUTSIDE
    np.subtract.at(own, thread.parents[inner], durations[inner])
    return own
