"""The schedule of a pipeline: as declared, and as measured in the median step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from placer.compiler.graph.graph import Graph
from placer.compiler.schedule.schedule import make_schedule
from placer.report.page.facts import PipelineRow, TaskFacts
from placer.report.pipeline import rows_of
from placer.report.step.facts import SliceFacts, StepTime, ThreadRow

_TASK, _TRANSFERS = "step", ("wait", "send", "receive")


def declared_schedule(graph: Graph, policy: str) -> tuple[PipelineRow, ...]:
    """Return the simulated schedule of a step, with declared FLOPs as time.

    Args:
        graph: the graph of a training step after the last pass.
        policy: the setting `train.schedule`.

    Returns:
        A row per node, or per device of a node if its tasks use several. Empty without
        microbatches.
    """
    schedule = make_schedule(graph, policy)
    if not any(schedule.tasks.values()):
        return ()
    end = max(turns[-1].end for turns in schedule.tasks.values() if turns)
    return tuple(
        PipelineRow(
            str(label),
            sum(turn.end - turn.start for turn in turns) / end,
            tuple(
                TaskFacts(turn.task, turn.microbatch, turn.start / end, turn.end / end)
                for turn in turns
            ),
        )
        for label, turns in rows_of(schedule)
    )


def measured_schedule(
    step_time: StepTime, declared: Sequence[PipelineRow]
) -> tuple[PipelineRow, ...]:
    """Return the tasks of the median step of a trace, a row per node.

    A task with waits or messages has several parts. The gaps between the parts are the
    time of waits and messages, which the declared schedule does not contain.

    Args:
        step_time: the median step.
        declared: the declared schedule, which has the names of the tasks.
    """
    names = {task.name for row in declared for task in row.tasks}
    if not names or not step_time.seconds:
        return ()
    rows = (_measured(row, names, step_time.seconds) for row in step_time.rows)
    return tuple(row for row in rows if row.tasks)


def _measured(row: ThreadRow, names: set[str], seconds: float) -> PipelineRow:
    moved = [each for each in row.slices if each.category in _TRANSFERS]
    moved.sort(key=lambda each: each.start)
    tasks: list[TaskFacts] = []
    first = 0
    for each in sorted(row.slices, key=lambda each: each.start):
        name, microbatch = _task(each, names)
        if not name:
            continue
        while first < len(moved) and moved[first].end <= each.start:
            first += 1
        tasks += (
            TaskFacts(name, microbatch, start / seconds, end / seconds)
            for start, end in _without(each, moved, first)
        )
    busy = sum(task.end - task.start for task in tasks)
    return PipelineRow(row.node, busy, tuple(tasks))


def _task(each: SliceFacts, names: set[str]) -> tuple[str, int | None]:
    """Return the task and microbatch of a slice; the task is empty for other slices."""
    if each.category != _TASK:
        return "", None
    name, _, number = each.name.rpartition(".")
    if name in names and number.isdecimal():
        return name, int(number)
    return (each.name, None) if each.name in names else ("", None)


def _without(
    task: SliceFacts, moved: Sequence[SliceFacts], first: int
) -> Iterator[tuple[float, float]]:
    """Yield the parts of a task outside the slices of messages, from number `first` on."""
    start = task.start
    for i in range(first, len(moved)):
        each = moved[i]
        if each.start >= task.end:
            break
        if each.start > start:
            yield start, each.start
        start = max(start, each.end)
    if task.end > start:
        yield start, task.end
