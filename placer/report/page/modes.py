"""Tells how workers that are not synchronous wait for each other."""

from __future__ import annotations

from placer.compiler.graph.graph import Graph
from placer.plan.plan import Plan
from placer.plan.settings.training.update_modes import Geo, HalfAsync, Mode
from placer.report.numbers import plural


def mode_of(graph: Graph, plan: Plan) -> str:
    """Return how the workers of a training step wait for each other, as sentences.

    Empty if they are synchronous or if there is one worker.

    Args:
        graph: the graph of a training step.
        plan: its plan.
    """
    if plan.workers < 2:
        return ""
    sentences = [_wait(mode) for mode in graph.modes.values() if mode is not None]
    backup = max(graph.backups.values(), default=0)
    if backup:
        sentences.append(
            "Backup workers: a step uses the gradients of the fastest"
            f" {plural(plan.workers - backup, 'worker')}."
        )
    return " ".join(dict.fromkeys(filter(None, sentences)))


def _wait(mode: Mode) -> str:
    if mode.is_sync:
        return ""
    if isinstance(mode, Geo):
        often = "every step" if mode.every == 1 else f"every {mode.every:,} steps"
        if mode.outer is not None:
            return f"Workers train their own copies and wait for each other {often}."
        return (
            "Asynchronous: workers do not wait for each other. They train their own"
            f" copies and exchange differences {often}."
        )
    text = "Asynchronous: workers do not wait for each other."
    if isinstance(mode, HalfAsync):
        return f"{text} In each step, a worker waits until its own gradient is applied."
    if mode.bound is None:
        return f"{text} Their staleness has no bound."
    return (
        f"{text} A worker is at most {plural(mode.bound, 'step')} ahead of the updates."
    )
