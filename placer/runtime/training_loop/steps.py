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
            each epoch. The last step has an evaluation as well.
        limit: the last step that `--steps` allows; None without it.
        is_stream: whether the source is a stream.
        is_cut_short: whether the last step became known only when the function of a stream had
            ended. Then no evaluation follows it, unless one is due there.
    """

    total: int | None
    batches: Batches
    evaluating: Batches | None
    evaluation_every: int
    limit: int | None = None
    is_stream: bool = False
    is_cut_short: bool = False

    def enter(self, batches: Batches, *, is_last: bool) -> None:
        """Go on with the batches of the next pass of a stream, the last one or not."""
        self.batches = batches
        is_cut = batches.last_step == self.limit
        self.total = batches.last_step if is_last or is_cut else None

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
        is_end = step == self.total and not self.is_cut_short
        is_due = self.evaluates_in_turn(step) or is_end
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
        length = 0 if self.is_stream else passes.length
        every = self.evaluation_every or length
        return Start(
            first_step=first,
            last_step=self.total or self.limit or 0,
            steps_per_epoch=length,
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
    plan, limit = execution.plan, execution.options.steps
    every, is_stream = plan.settings.train.eval.interval, plan.train.stream is not None
    is_over = not is_stream or batches.last_step == limit
    return Steps(
        batches.last_step if is_over else None,
        batches,
        evaluating,
        0 if every.unit == "epochs" else int(every.number),
        limit,
        is_stream,
    )
