"""The history of a run on the control node: written to a file and reported, by step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO

import msgspec

from placer.errors import RunError
from placer.runtime.metrics.learning_rates import rate_schedules
from placer.runtime.metrics.statistics import (
    Statistics,
    add_statistics,
    finalize_all,
    finalizers_of,
    weight_by_rows,
)
from placer.runtime.metrics.stream import StepMetrics
from placer.runtime.run.events import Step
from placer.runtime.run.state import Execution


class HistoryWriter:
    """Receives the metrics of every step, in order, from `MetricsStream`.

    Args:
        execution: the run of the node. The control node writes a line of JSON per step
            to the file of `--history`, if any, and reports an event per step.

    Attributes:
        steps: the number of the last step.
        eval: the metrics of the last evaluation.

    Raises:
        RunError: if the file cannot be written.
    """

    def __init__(self, execution: Execution) -> None:
        by_name = finalizers_of(execution.plan)
        self._finalizers = {name: by_name[name] for name in execution.plan.metrics}
        self._rates = rate_schedules(execution.plan)
        self._execution = execution
        self._epoch = self._rows = 0
        self._sums: Statistics = {}
        self._file: FileIO | None = None
        self.steps = 0
        self.eval: dict[str, float] = {}
        history = execution.options.history
        if history is not None and execution.is_control:
            with self._errors_reported():
                # Without a buffer, a line that cannot be written fails once, and not
                # again when the file is closed after the failure.
                self._file = history.open("wb", buffering=0)

    def close(self) -> None:
        """Close the history; RunError if the system could not store its last lines."""
        if self._file is not None:
            with self._errors_reported():
                self._file.close()

    def __call__(self, line: StepMetrics) -> None:
        """Add the metrics of the next step."""
        if line.epoch != self._epoch:
            self._epoch, self._rows, self._sums = line.epoch, 0, {}
        self._rows += line.rows
        self.steps = line.step
        add_statistics(
            self._sums, weight_by_rows(line.statistics, self._finalizers, line.rows)
        )
        if line.eval is not None:
            self.eval = line.eval
        step = Step(
            line.step,
            line.epoch,
            line.metrics,
            line.eval,
            self._execution.timing.rate,
            line.seconds,
            line.evaluation_seconds,
            # The first update is step 0 of a schedule.
            {name: rate(line.step - 1) for name, rate in self._rates.items()},
        )
        self._write(step)
        self._execution.report(step)

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the last epoch, or of the part of it that ran."""
        return (
            finalize_all(self._sums, self._finalizers, self._rows) if self._rows else {}
        )

    def _write(self, step: Step) -> None:
        if self._file is None:
            return
        # NaN and infinity, which JSON does not have, become null.
        line = msgspec.json.encode(step.history_line()) + b"\n"
        with self._errors_reported():
            while line:
                line = line[self._file.write(line) :]

    @contextmanager
    def _errors_reported(self) -> Iterator[None]:
        """Raise RunError for an OSError within the context."""
        try:
            yield
        except OSError as error:
            raise RunError(
                f"the history cannot be written to {self._execution.options.history}: {error.strerror}",
                hint="name a file in a folder that exists and has room",
            ) from error
