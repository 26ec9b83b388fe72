"""The lines of a run on the control node: written as its history, and reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from placer.build.plan import Plan
from placer.errors import RunError
from placer.runtime.metrics.statistics import Statistics, add, finals, numbers, weighted
from placer.runtime.metrics.stream import Line
from placer.runtime.run.events import Report, finite


class Lines:
    """Takes a run's lines in their order, as `Metrics` gives them.

    `history` is the file that they are written to, opened here; `rate` tells the rows
    per second so far. RunError where the file cannot be written.
    """

    def __init__(
        self,
        plan: Plan,
        history: Path | None,
        report: Report,
        rate: Callable[[], float],
    ) -> None:
        of = finals(plan)
        self._finals = {name: of[name] for name in plan.metrics}
        self._report, self._rate = report, rate
        self._epoch = self._rows = 0
        self._sums: Statistics = {}
        self._history = history
        self._file: TextIO | None = None
        self.steps = 0
        self.eval: dict[str, float] = {}
        if history is not None:
            try:
                self._file = history.open("w", encoding="utf-8")
            except OSError as error:
                raise self._unwritten(error) from error

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self,
        failed: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except RunError:
            if failed is None:  # else the first failure is the one to report
                raise

    def close(self) -> None:
        """Close the history; RunError where what it still held cannot be written."""
        if self._file is None:
            return
        try:
            self._file.close()
        except OSError as error:
            raise self._unwritten(error) from error

    def __call__(self, line: Line) -> None:
        """Take the next line."""
        if line.epoch != self._epoch:
            self._epoch, self._rows, self._sums = line.epoch, 0, {}
        self._rows += line.rows
        self.steps = line.step
        add(self._sums, weighted(line.statistics, self._finals, line.rows))
        said: dict[str, Any] = {
            "step": line.step,
            "epoch": line.epoch,
            "metrics": line.metrics,
        }
        if line.eval is not None:
            said["eval"] = self.eval = line.eval
        self._write(said)
        self._report({"event": "step", **said, "samples_per_second": self._rate()})

    @property
    def metrics(self) -> dict[str, float]:
        """What the last epoch, or the part of it that ran, comes to."""
        return numbers(self._sums, self._finals, self._rows) if self._rows else {}

    def _write(self, said: dict[str, Any]) -> None:
        if self._file is None:
            return
        plain = {k: finite(v) if isinstance(v, dict) else v for k, v in said.items()}
        try:
            self._file.write(json.dumps(plain, allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise self._unwritten(error) from error

    def _unwritten(self, error: OSError) -> RunError:
        return RunError(
            f"the history cannot be written to {self._history}: {error.strerror}",
            hint="name a file in a folder that exists and has room",
        )
