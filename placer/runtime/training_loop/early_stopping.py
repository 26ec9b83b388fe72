"""Watches evaluation results: early stopping and the best checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import structs

from placer.checkpoint.manifest import Progress
from placer.runtime.control.common_step import Action
from placer.runtime.control.execution import Execution
from placer.runtime.metrics.stopping_rule import EvaluationWatch


@dataclass(frozen=True, slots=True)
class Watches:
    """Watches evaluation results.

    Attributes:
        best: tracks the evaluation whose checkpoint is kept; None if the run keeps none.
        stopping: tracks evaluations for `train.early_stopping`; None without it.
    """

    best: EvaluationWatch | None = None
    stopping: EvaluationWatch | None = None

    def __bool__(self) -> bool:
        return self.best is not None or self.stopping is not None

    def restore(self, progress: Progress) -> None:
        """Continue from the position of a checkpoint."""
        if self.best is not None:
            self.best.restore(progress.best)
        if self.stopping is not None:
            self.stopping.restore(progress.stopping)

    def store(self, progress: Progress) -> Progress:
        """Return the position, with the best evaluations so far added."""
        return structs.replace(
            progress,
            best=self.best and self.best.found,
            stopping=self.stopping and self.stopping.found,
        )

    def add(self, step: int, metrics: Mapping[str, float], *, is_due: bool) -> Action:
        """Add the evaluation after a step; return the resulting action.

        An evaluation that is made only because the run ends does not count for
        `train.early_stopping`. So a continued run stops at the same step as a run without a
        break.
        """
        if self.best is not None:
            self.best.add(step, metrics)
        if self.stopping is not None and is_due:
            self.stopping.add(step, metrics)
        action = Action.NONE
        if self.best is not None and self.best.is_best(step):
            action |= Action.SAVE
        if self.is_exhausted:
            action |= Action.STOP
        return action

    @property
    def is_exhausted(self) -> bool:
        """Whether early stopping ends the run."""
        return self.stopping is not None and self.stopping.is_exhausted


def make_watches(execution: Execution) -> Watches:
    """Return the watches of a run."""
    settings = execution.checkpointing
    best = settings.best if settings is not None else None
    stop = execution.plan.settings.train.early_stopping
    return Watches(
        None if best is None else EvaluationWatch(best),
        None if stop is None
        else EvaluationWatch(stop, stop.patience, stop.min_delta),
    )  # fmt: skip
