"""Prints a schedule as text."""

from __future__ import annotations

from placer.compiler.schedule.schedule import Schedule


def print_schedule(schedule: Schedule) -> str:
    """Return the schedule as text, one line per node."""
    head = f"schedule {schedule.policy} microbatches({schedule.microbatches}) {{"
    lines = [
        f"  {node} {' '.join(schedule.task_names(node))}" for node in schedule.tasks
    ]
    return "\n".join([head, *lines, "}"]) + "\n"
