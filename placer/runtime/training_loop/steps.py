"""The steps of a run: their number, and which are followed by an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from placer.runtime.batches.batches import Batches
from placer.runtime.batches.passes import Passes
from placer.runtime.control.barrier import STEP
from placer.runtime.control.events import Start
from placer.runtime.control.execution import Execution
from placer.runtime.metrics.combiner import Phase


@dataclass(slots=True)
class Steps:
    """The training steps of a run, numbered from 1.

    Attributes:
        total: the number of the last step; None while it is not known (in a stream).
        batches: the global batches, one per step; of a stream, those of the present pass.
        evaluating: the batches of the evaluation; None without evaluations.
        evaluation_every: the number of steps between evaluations; 0 for an evaluation after
            each epoch. The last step always has an evaluation.
    """

    total: int | None
    batches: Batches
    evaluating: Batches | None
    evaluation_every: int

    @property
    def passes(self) -> Passes:
        """The passes over the rows."""
        return self.batches.passes

    def evaluates_in_turn(self, step: int) -> bool:
        """Whether the interval of evaluations ends with this step."""
        every = self.evaluation_every
        return step % every == 0 if every else self.passes.ends(step)

    def is_evaluated(self, step: int) -> bool:
        """Whether an evaluation follows a step."""
        is_due = self.evaluates_in_turn(step) or step == self.total
        return self.evaluating is not None and is_due

    def phase(self, step: int) -> Phase:
        """Return the phase that the metrics of a step belong to."""
        epoch, index = self.passes.place_of(step)
        rows = self.batches.batch_size(index)
        return Phase(STEP, step, epoch, rows, self.is_evaluated(step))

    def start_at(self, first: int, attempt: int, workers: Mapping[str, int]) -> Start:
        """Return the event that announces training from step `first` on, in an attempt.
        `workers` are the steps after which asynchronous workers begin."""
        evaluating, passes = self.evaluating, self.passes
        every = self.evaluation_every or passes.length
        return Start(
            first_step=first,
            last_step=self.total or 0,
            steps_per_epoch=passes.length,
            evaluation_every=every if evaluating else 0,
            rows=self.batches.order.batch,
            evaluation_rows=evaluating.epoch_rows if evaluating else 0,
            attempt=attempt,
            workers=dict(workers),
            before=self.batches.before,
        )


def steps_of(
    execution: Execution, batches: Batches, evaluating: Batches | None
) -> Steps:
    """Return the steps of a run over these batches."""
    every = execution.plan.settings.train.eval.interval
    return Steps(
        batches.last_step,
        batches,
        evaluating,
        0 if every.unit == "epochs" else int(every.number),
    )
