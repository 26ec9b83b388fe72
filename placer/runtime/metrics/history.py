"""The history of a run on the control node: written to a file and reported, step by step."""

from __future__ import annotations

import math
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from typing import Final

import msgspec

from placer.checkpoint.manifest import Number, Progress
from placer.errors import RunError
from placer.runtime.batches.passes import Passes
from placer.runtime.control.common_step import Action
from placer.runtime.control.events import NodeWarning, Step
from placer.runtime.control.execution import Execution
from placer.runtime.control.pace import ControlPace
from placer.runtime.metrics.combiner import StepMetrics
from placer.runtime.metrics.learning_rates import rate_schedules
from placer.runtime.metrics.statistics import (
    Statistics,
    add_statistics,
    decode_statistics,
    encode_statistics,
    finalize_all,
    finalizers_of,
    weight_by_rows,
)


class _Line(msgspec.Struct):
    """The fields to read from a line of an existing history."""

    step: int


MAX_LINE: Final = 1 << 24
"""The largest size of a history line in bytes."""
OTHER_METRICS: Final = (
    "train.metrics differ from the checkpoint: the metrics of the interrupted epoch cover"
    " only its remaining steps"
)


class HistoryWriter:
    """Receives the metrics of every step, in order, from `MetricsStream`.

    If a line cannot be written, for example to a full disk, the run stops as after a signal,
    so that its results are saved. `close` then raises the error.

    Args:
        execution: the run of the node. The control node writes a line of JSON per step to
            the file of `--history`, if any, and reports an event per step.

    Attributes:
        steps: the number of the last step.
        eval: the metrics of the last evaluation.
    """

    def __init__(self, execution: Execution) -> None:
        by_name = finalizers_of(execution.plan)
        self._finalizers = {
            name: by_name[name] for name in execution.plan.settings.train.metrics
        }
        self._rates = rate_schedules(execution.plan)
        self._execution = execution
        self._epoch = self._rows = 0
        self._passes = Passes(1, 0)
        self._sums: Statistics = {}
        self._file: FileIO | None = None
        self._problem: RunError | None = None
        self.steps = self.untrained_rows = 0
        self.eval: dict[str, float] = {}
        self._has_first = False
        self._seconds = self._seconds_before = 0.0

    def open(self, passes: Passes, progress: Progress | None = None) -> None:
        """Open the file. To continue a run, set its position and remove later lines.
        Raises RunError if the file has no line for the last step of the position."""
        self._passes = passes
        if progress is not None:
            self._epoch = progress.epoch
            self.steps = progress.step
            self.untrained_rows = progress.untrained_rows
            self._seconds = self._seconds_before = progress.seconds
            stored = progress.statistics
            finalizers = {name: each.finalizer for name, each in stored.items()}
            if finalizers == self._finalizers:
                self._rows = progress.rows
                self._sums = decode_statistics(stored)
            elif stored and self._execution.is_control:
                self._execution.report(NodeWarning(OTHER_METRICS))
            if self._execution.plan.evaluation is not None:
                self.eval = {
                    name: float(value)
                    for name, value in progress.eval.items()
                    if name in self._finalizers
                }
        history = self._execution.options.history
        if history is None or not self._execution.is_control:
            return
        with self._errors_reported():
            continues = progress is not None and history.is_file()
            # Without a buffer, a failed write is not repeated when the file is closed.
            self._file = history.open("r+b" if continues else "wb", buffering=0)
            if continues:
                self._cut(self._file, self.steps)

    def enter(self, passes: Passes) -> None:
        """Go on with the next pass of a stream, when all steps before are in the history."""
        self._passes = passes

    def progress(self, batches: int) -> Progress:
        """Return the position of the run, after `batches` batches of the epoch."""
        return Progress(
            step=self.steps,
            epoch=self._epoch,
            batches=batches,
            rows=self._rows,
            untrained_rows=self.untrained_rows,
            seconds=self._seconds,
            statistics=encode_statistics(self._sums, self._finalizers),
            eval={name: _number(value) for name, value in self.eval.items()},
            before=(self._passes.step, self._passes.epoch),
        )

    def sync(self) -> None:
        """Flush the lines so far to the disk (fsync)."""
        file = self._file
        if file is None or self._problem is not None:
            return
        with self._errors_stop():
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                os.fsync(file.fileno())

    def _cut(self, file: FileIO, step: int) -> None:
        """Remove the lines after a step from an existing file."""
        end = last = 0
        first = step + 1  # of a file without a complete line
        with open(file.fileno(), "rb", closefd=False) as lines:
            while line := lines.readline(MAX_LINE):
                try:
                    number = msgspec.json.decode(line, type=_Line).step
                except msgspec.DecodeError:
                    break
                first = number if end == 0 else first
                if number > step or not line.endswith(b"\n"):
                    break
                end, last = end + len(line), number
        # An earlier attempt may have begun the file after this step.
        is_begun = self._execution.continues and end == 0 and first == step + 1
        if last != step and not is_begun:
            raise RunError(
                f"the history {self._execution.options.history} has no line for step"
                f" {step}, after which the run continues",
                hint="pass the history of the continued run, or a new file, to --history",
            )
        file.seek(end)
        file.truncate()

    def close(self) -> None:
        """Close the history. Raises RunError if a line could not be written."""
        if self._file is not None:
            with self._errors_reported():
                self._file.close()
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem

    def __call__(self, line: StepMetrics) -> None:
        """Add the metrics of the next step."""
        values = weight_by_rows(line.statistics, self._finalizers, line.rows)
        shapes = {name: value.shape for name, value in values.items()}
        # Sums from a checkpoint have other shapes if a metric has changed.
        changed = any(sums.shape != shapes[name] for name, sums in self._sums.items())
        if line.epoch != self._epoch or changed:
            self._epoch, self._rows, self._sums = line.epoch, 0, {}
        self._rows += line.rows
        self.untrained_rows += line.untrained_rows
        self.steps = line.step
        add_statistics(self._sums, values)
        if line.eval is not None:
            self.eval = line.eval
        self._seconds = self._seconds_before + line.seconds
        # Later steps may have been timed before the metrics of the first one arrive.
        rate = self._execution.timing.rate if self._has_first else 0.0
        self._has_first = True
        step = Step(
            line.step,
            line.epoch,
            line.metrics,
            line.eval,
            rate,
            self._seconds,
            line.evaluation_seconds,
            # The first update is step 0 of a schedule.
            {name: rate(line.step - 1) for name, rate in self._rates.items()},
            self.metrics if self._passes.ends(line.step) else None,
            time.time(),
        )
        self._write(step)
        if isinstance(pace := self._execution.pace, ControlPace):
            pace.step_reported()
        self._execution.report(step)

    def add_part(self, statistics: Statistics, rows: int, batch: int) -> None:
        """Add a node's metrics of a later step of the epoch, which only some nodes
        finished. They cover `rows` of the `batch` rows of the step."""
        reported = {n: statistics[n] for n in self._finalizers if n in statistics}
        add_statistics(self._sums, weight_by_rows(reported, self._finalizers, batch))
        self._rows += rows

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the last epoch, or of the steps of it that ran."""
        return (
            finalize_all(self._sums, self._finalizers, self._rows) if self._rows else {}
        )

    def _write(self, step: Step) -> None:
        if self._file is None or self._problem is not None:
            return
        # JSON has no NaN and infinity; they become null.
        line = msgspec.json.encode(step.history_line()) + b"\n"
        with self._errors_stop():
            while line:
                line = line[self._file.write(line) :]

    @contextmanager
    def _errors_stop(self) -> Iterator[None]:
        """Stop the run after an OSError within the context."""
        try:
            with self._errors_reported():
                yield
        except RunError as error:
            self._problem = error
            self._execution.report(NodeWarning(f"{error.message}; the run stops"))
            self._execution.common_step.request(Action.STOP)

    @contextmanager
    def _errors_reported(self) -> Iterator[None]:
        """Raise RunError for an OSError within the context."""
        try:
            yield
        except OSError as error:
            raise RunError(
                f"cannot write the history to {self._execution.options.history}: {error.strerror}",
                hint="pass --history a file in an existing folder on a disk with free space",
            ) from error


def _number(value: float) -> Number:
    if math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
