"""The result of a run."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from placer.errors import PlacerError

if TYPE_CHECKING:
    import numpy as np

Metrics: TypeAlias = dict[str, float]
Params: TypeAlias = "dict[str, np.ndarray]"


class Result(msgspec.Struct, frozen=True, tag_field="event", tag="result", dict=True):
    """The result of a run, which the control node reports as an event.

    That of `placer.launch` also has the `history` and the `params` of the run, which
    are not part of the event.

    Attributes:
        steps: the number of training steps.
        metrics: the metrics over all rows of the last epoch, or of the part of it that
            ran.
        eval: the metrics over all rows of the last evaluation.
        samples_per_second: rows of the global batch per second, without the first step.
        bytes_sent: the payload bytes that each node sent.
        checkpoint_seconds: how long the steps of a node have waited for checkpoints, of
            the node that has waited longest.
        streams: how the messages of each node went to its peers: "shared memory", "unix
            socket", "tls", "tcp", or "thread".
        staleness: how many times gradients were applied with each staleness: so many
            steps of other workers were applied to the table since the worker got the
            parameters. Empty if all nodes go in lockstep.
        staleness_bound: the largest staleness that `max_staleness` allows, over all
            workers; None without a bound.
        divergence: if workers update by themselves, the largest absolute difference that
            there was between a parameter of a worker and that of the first one when it
            took that, before an evaluation, a checkpoint or the end; else None.
        untrained_rows: how many rows of the steps of this run were not trained, because
            these did not wait for their workers: with `update: {sync: {backup: 1}}`.
        shares: with `--trace`, for each node which part of the time of the traced steps
            it has taken to compute, send, receive, update, read, copy, look up rows
            (`rows`), and to wait; `step` is the rest.
        tables: for each sparse table what has happened in it in this run, on all nodes: the
            `rows` that it has and their `nbytes`; how often keys were `admitted` to a row
            or `refused` one; how many rows were `forgotten`, and `evicted` over the
            capacity; how many gradients were dropped because they were `not_finite`; how
            many keys were looked up (`lookups`), how many of them had a row (`hits`), and
            which part that is (`hit_rate`).
        warnings: messages about learning rates that were 0 for the rest of the run, and
            about processes that failed after the run had this result.
        failed_late: whether a process failed after the run had this result.
        history: for each step a dict with `step`, `epoch`, `seconds` since the first
            step began, `metrics` and, after an evaluation, `eval`, as `--history`
            writes them.
        params: the parameters after the last step, by name.
        best: the path of the checkpoint of the best evaluation, which `placer.predict`,
            `placer.export` and `init_params` take as parameters; None without
            checkpoints or evaluations. It may be in the folder of checkpoints of the run
            that this one continues. With other machines it is on that of the first
            node.

    Example:
        result = placer.launch("build")
        print(result.eval["accuracy"])
    """

    steps: int
    metrics: Metrics
    eval: Metrics
    samples_per_second: float
    bytes_sent: dict[str, int]
    warnings: tuple[str, ...] = ()
    failed_late: bool = False
    checkpoint_seconds: float = 0.0
    streams: dict[str, dict[str, str]] = {}
    staleness: dict[str, int] = {}
    staleness_bound: int | None = None
    divergence: float | None = None
    untrained_rows: int = 0
    shares: dict[str, dict[str, float]] = {}
    tables: dict[str, dict[str, int | float | None]] = {}
    best: str | None = None

    def __repr__(self) -> str:
        sent = sum(self.bytes_sent.values()) / 1e6
        lines = [
            f"Result: {self.steps:,} steps, {self.samples_per_second:,.0f} samples/s,"
            f" {sent:,.1f} MB sent"
        ]
        for what, metrics in (("last epoch", self.metrics), ("evaluation", self.eval)):
            if metrics:
                shown = "  ".join(f"{k} {value:.4g}" for k, value in metrics.items())
                lines.append(f"{what}  {shown}")
        lines += [f"warning: {text}" for text in self.warnings]
        return "\n  ".join(lines)

    def keep(
        self,
        history: Callable[[], list[dict[str, Any]]],
        params: Callable[[], Params],
    ) -> None:
        """Let the result have the history and parameters that these functions read."""
        self.__dict__.update(_read_history=history, _read_params=params)

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        return self._kept("_read_history")  # type: ignore[no-any-return]

    @cached_property
    def params(self) -> Params:
        return self._kept("_read_params")  # type: ignore[no-any-return]

    def _kept(self, name: str) -> Any:
        if name not in self.__dict__:
            raise PlacerError(
                "only a result of placer.launch has the history and the parameters"
            )
        return self.__dict__[name]()


class PredictionResult(
    msgspec.Struct, frozen=True, tag_field="event", tag="prediction_result"
):
    """The result of a prediction, which the control node reports as an event.

    Attributes:
        rows: the number of rows.
        samples_per_second: rows per second, after everything was compiled.
        bytes_sent: the payload bytes that each node sent.
        warnings: messages about processes that failed after the predictions were
            written.
        failed_late: whether a process did.
    """

    rows: int
    samples_per_second: float
    bytes_sent: dict[str, int]
    warnings: tuple[str, ...] = ()
    failed_late: bool = False


Outcome: TypeAlias = Result | PredictionResult
"""What the control node reports at the end of a run."""
