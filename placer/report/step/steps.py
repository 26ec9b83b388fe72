"""Finds the training steps of a trace, and the median step.

A step begins at the end of the step before, or later, when the first of its workers begins
it. It ends when the last of its workers ends it. Steps therefore do not overlap, and the
time of an evaluation between two steps does not count.

Workers that wait for each other in every step have common steps. Other workers, such as
asynchronous ones, have separate steps. Of these, the slowest worker counts, because it
decides when the run ends: the worker with the longest median step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from placer.place.node_kinds import HETER, SERVER, NodeId
from placer.plan.plan import Plan
from placer.report.step.trace import Trace
from placer.runtime.timeline.recorder import PROGRAM, STEP

MIDDLE: Final = 100
"""The largest number of steps around the median over which means are computed."""
_NAME: Final = re.compile(r"step ([0-9]{1,18})")


@dataclass(frozen=True, slots=True)
class Step:
    """A step of workers. Times are nanoseconds.

    Attributes:
        number: the number of the step.
        begin: the start of the step.
        end: its end.
        thread: the index in `Trace.threads` of the thread that ended last.
        is_common: whether all workers have this step in common.
    """

    number: int
    begin: int
    end: int
    thread: int
    is_common: bool

    @property
    def duration(self) -> int:
        """The duration in nanoseconds."""
        return self.end - self.begin


def steps_of(trace: Trace, plan: Plan) -> list[Step]:
    """Return the steps that the trace contains completely: the common steps of all workers,
    or the steps of the slowest worker."""
    spans = {
        index: found
        for index, thread in enumerate(trace.threads)
        if thread.name == PROGRAM and (found := spans_of(trace, index))
    }
    workers = [
        index
        for index in spans
        if NodeId(trace.threads[index].node).kind not in (SERVER, HETER)
    ] or list(spans)
    names = {node.name for node in plan.nodes}
    is_common = len(workers) == 1 or all(
        node not in names or plan.worker_of(node) is None
        for node in (trace.threads[index].node for index in workers)
    )
    limit = min(trace.full_in.values(), default=None)
    groups = [
        [
            step
            for step in _steps_of({index: spans[index] for index in group}, is_common)
            if limit is None or step.number < limit
        ]
        for group in ([workers] if is_common else [[index] for index in workers])
    ]
    recorded = [steps for steps in groups if steps]
    return max(recorded, key=lambda steps: median_step(steps).duration, default=[])


def median_step(steps: Sequence[Step]) -> Step:
    """Return the step with the median duration: of an even number, the shorter one of the
    two in the middle."""
    ordered = sorted(steps, key=lambda step: (step.duration, step.number))
    return ordered[(len(ordered) - 1) // 2]


def middle_steps(steps: Sequence[Step]) -> Sequence[Step]:
    """Return the third of the steps with durations around the median, at most `MIDDLE`."""
    ordered = sorted(steps, key=lambda step: (step.duration, step.number))
    count = min(MIDDLE, max(1, len(ordered) // 3))
    first = (len(ordered) - count) // 2
    return ordered[first : first + count]


def spans_of(trace: Trace, thread: int) -> dict[int, tuple[int, int]]:
    """Return the start and the end of each step of a thread, by its number."""
    found = trace.threads[thread]
    numbers = {
        index: int(match[1])
        for index, label in enumerate(trace.labels)
        if label.category == STEP and (match := _NAME.fullmatch(label.name))
    }
    return {
        numbers[label]: (start, end)
        for label, start, end in zip(
            found.labels.tolist(),
            found.starts.tolist(),
            found.ends.tolist(),
            strict=True,
        )
        if label in numbers
    }


def _steps_of(
    spans: dict[int, dict[int, tuple[int, int]]], is_common: bool
) -> Iterator[Step]:
    """Yield the steps that all threads of a group have."""
    every = [set(steps) for steps in spans.values()]
    common = set.intersection(*every) if every else set()
    before = 0
    for number in sorted(common):
        begin = max(before, min(steps[number][0] for steps in spans.values()))
        last = max(spans, key=lambda thread: spans[thread][number][1])
        end = before = max(before, spans[last][number][1])
        if end > begin:
            yield Step(number, begin, end, last, is_common)
