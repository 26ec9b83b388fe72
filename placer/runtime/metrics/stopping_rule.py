"""Tracks the best evaluation by one metric: which checkpoint to keep, and when to stop."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from placer.checkpoint.manifest import Watched
from placer.plan.settings.evaluation_and_stopping import Best


class EvaluationWatch:
    """Follows one metric of the evaluations of a run.

    Args:
        best: the metric, and whether smaller or larger values are better.
        patience: the number of evaluations without improvement after which
            `is_exhausted` is true; None for never.
        min_delta: the smallest change that counts as an improvement.

    Attributes:
        found: the best evaluation so far, None before the first one.
    """

    def __init__(
        self, best: Best, patience: int | None = None, min_delta: float = 0.0
    ) -> None:
        self._best, self._patience, self._min_delta = best, patience, min_delta
        self.found: Watched | None = None

    def restore(self, found: Watched | None) -> None:
        """Continue from the best evaluation of a checkpoint, if it has the same metric."""
        best = self._best
        if found is not None and (found.metric, found.mode) == (best.metric, best.mode):
            self.found = found

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add the metrics of the evaluation after a step."""
        value = metrics[self._best.metric]
        before = self.found
        delta = self._min_delta if self._best.mode == "min" else -self._min_delta
        bound = None if before is None else before.value - delta
        if self._best.improves(value, bound):
            self.found = Watched(self._best.metric, self._best.mode, value, step)
        elif before is not None:
            self.found = replace(before, since=before.since + 1)

    def is_best(self, step: int) -> bool:
        """Whether the evaluation after this step is the best one so far."""
        return self.found is not None and self.found.step == step

    @property
    def is_exhausted(self) -> bool:
        """Whether `patience` evaluations have passed without an improvement."""
        if self.found is None or self._patience is None:
            return False
        return self.found.since >= self._patience
