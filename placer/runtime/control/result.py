"""Defines the results of training runs and predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

import placer
from placer.errors import PlacerError

if TYPE_CHECKING:
    import numpy as np

Metrics: TypeAlias = dict[str, float]
Params: TypeAlias = "dict[str, np.ndarray]"


class Restart(msgspec.Struct, frozen=True):
    """A failure after which a run went on.

    Attributes:
        node: the node that failed first; empty if it is not known.
        what: the failure, and those that followed before all nodes trained again.
        step: the step after which the run continued; 0 if it began anew.
        again: the number of steps that were done again.
        seconds: the time from the failure to the next step.
        workers: the number of begun steps that each worker did again, for asynchronous
            training. A worker reports its step about twice a second.
    """

    node: str
    what: str
    step: int
    again: int
    seconds: float
    workers: dict[str, int] = {}

    def __str__(self) -> str:
        again = f"{self.again:,} step{'s' * (self.again != 1)} again"
        what = self.what.partition("\n")[0]
        return f"{what} ({again}, {self.seconds:.1f} s)"


class Result(msgspec.Struct, frozen=True, tag_field="event", tag="result", dict=True):
    """The result of a training run, which the control node reports as an event.

    The result of `placer.launch` also has `history`, `params`, `state`, `best_eval`,
    `best_step`, `diverged`, `other_load` and `folder`, which are not part of the event.

    Attributes:
        steps: the number of training steps.
        metrics: the metrics over all trained rows of the last epoch.
        eval: the metrics over all rows of the last evaluation.
        samples_per_second: rows of the global batch per second, without the first step.
        bytes_sent: the payload bytes that each node sent.
        checkpoint_seconds: the longest total time that the steps of a node waited for
            checkpoints.
        streams: for each node and peer, the path of the messages: "shared memory", "unix
            socket", "tls", "tcp" or "thread".
        staleness: a histogram: for each staleness, how many gradients were applied with it.
            The staleness is the number of other workers' steps that were applied after the
            worker received its parameters. Empty for synchronous training. With `--restarts`,
            `bytes_sent`, `checkpoint_seconds` and the counts of staleness are those of the
            last attempt.
        staleness_bound: the largest staleness that `max_staleness` allows for any worker;
            None without a bound.
        geo_staleness: the same histogram for the differences that workers push with `geo`.
            No bound applies to it.
        divergence: for workers that run their own optimizer, the largest absolute
            difference between a parameter of a worker and of the first worker. It is
            measured when the workers copy the first worker's parameters: before
            evaluations, checkpoints and the end. Otherwise None.
        untrained_rows: the number of rows that were skipped because their worker was a
            straggler, with `update: {sync: {backup: 1}}`.
        shares: with `--trace`, the fractions of the traced time that each node spent on
            `compute`, `send`, `receive`, `update`, `read`, `copy`, `rows` (row lookups),
            `record` (bookkeeping between steps) and `wait`; `step` is the rest, which
            the command line prints as `other`. Activities without time are left out.
        tables: for each sparse table, the counts over all nodes: see `TableCounts`.
            `hit_rate` is the fraction of lookups that found a row. In a resumed run, `since`
            is the step after which it counts.
        table_rows: for each sparse table, the number of rows on each node that stores it.
        table_counted: the same for counted keys without a row.
        table_bytes: the same for the memory in bytes.
        warnings: messages about learning rates that stayed 0 until the end, and about
            processes that failed after the result was complete.
        failed_late: whether a process failed after the result was complete.
        restarts: with `--restarts`, the failures after which the run went on, in order. Each
            has `node`, `what`, the `step` after which the run continued, the number of steps
            that were done `again`, and the `seconds` until the next step.
        history: a list with a dict for each step: `step`, `epoch`, `seconds` since the
            first step began, `metrics` and, after an evaluation, `eval`. `--history` writes
            the same dicts. A resumed run has only the steps after its checkpoint here;
            `history.jsonl` in `folder` also has the earlier steps if the run continues
            that folder.
        params: the parameters after the last step, by name. With `eval_params` of an optax
            optimizer, they are the values for evaluations.
        state: the part of `params` that training updates without an optimizer, such as
            running statistics. Empty for a model without state.
        best_eval: the metrics of the best evaluation; empty if the run does not compare its
            evaluations.
        best_step: the step of the best evaluation, or None.
        diverged: a sentence about a loss that rose: its mean over the last 10 steps is more
            than twice the first loss, the mean over the first 32 rows. Empty otherwise.
        other_load: the mean number of cores that other programs used during the run; None
            if it was not measured.
        folder: the folder of the run, such as `runs/digits-1`; None if it was not written.
        passes: with a stream, the number of its passes that this run has begun or continued; None
            without a stream.
        best: the path of the checkpoint with the best evaluation; None without checkpoints
            or evaluations. `placer.predict`, `placer.export` and `init_params` accept it.
            In a resumed run, it may be in the folder of the earlier run. In a run on
            several machines, it is on the machine of the first node.
        published: the path of the newest publication of the run's folder of publications; None if
            the run publishes nothing.

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
    geo_staleness: dict[str, int] = {}
    divergence: float | None = None
    untrained_rows: int = 0
    shares: dict[str, dict[str, float]] = {}
    tables: dict[str, dict[str, int | float | None]] = {}
    table_rows: dict[str, dict[str, int]] = {}
    table_counted: dict[str, dict[str, int]] = {}
    table_bytes: dict[str, dict[str, int]] = {}
    best: str | None = None
    published: str | None = None
    passes: int | None = None
    restarts: tuple[Restart, ...] = ()

    def __repr__(self) -> str:
        sent = sum(self.bytes_sent.values()) / 1e6
        lines = [
            f"Result: {self.steps:,} steps, {self.samples_per_second:,.0f} samples/s,"
            f" {sent:,.1f} MB sent"
            if self.has_trained
            else f"Result: {self.steps:,} steps; nothing was left to train"
        ]
        last = "last epoch" if self.passes is None else "last pass"
        for what, metrics in ((last, self.metrics), ("evaluation", self.eval)):
            if metrics:
                shown = "  ".join(f"{k} {value:.4g}" for k, value in metrics.items())
                before = " (before shrinking)" * self.is_before_shrinking
                lines.append(f"{what}  {shown}{before}")
        if self.best_eval:
            shown = "  ".join(f"{k} {value:.4g}" for k, value in self.best_eval.items())
            lines.append(f"best  {shown}  (step {self.best_step})")
        if self.diverged:
            lines.append(self.diverged)
        if self.folder is not None:
            lines.append(f"the run's folder is {self.folder}")
        lines += [f"restart: {each}" for each in self.restarts]
        lines += [f"warning: {text}" for text in self.warnings]
        return "\n  ".join(lines)

    def _repr_html_(self) -> str:
        """Return the result with its curves, which a notebook shows."""
        return placer._html(self)

    def keep(
        self,
        history: Callable[[], list[dict[str, Any]]],
        params: Callable[[], Params],
        state: Sequence[str],
    ) -> None:
        """Set the functions that read the history and the parameters when they are used.

        `state` has the names of the parameters that are state.
        """
        self.__dict__.update(_read_history=history, _read_params=params, _state=state)

    def keep_record(
        self,
        *,
        folder: Path | None,
        best_eval: Metrics,
        best_step: int | None,
        has_trained: bool,
        has_shrunk: bool,
        diverged: str,
        other_load: float | None,
    ) -> None:
        """Set the facts that the launcher's record of the run has.

        `has_trained` is False for a resumed run without further steps. `has_shrunk` is True
        for a run with `--shrink`.
        """
        self.__dict__.update(
            _folder=folder,
            _best_eval=best_eval,
            _best_step=best_step,
            _has_trained=has_trained,
            _has_shrunk=has_shrunk,
            _diverged=diverged,
            _other_load=other_load,
        )

    @property
    def best_eval(self) -> Metrics:
        return self.__dict__.get("_best_eval", {})  # type: ignore[no-any-return]

    @property
    def best_step(self) -> int | None:
        return self.__dict__.get("_best_step")

    @property
    def has_trained(self) -> bool:
        """Whether the run had steps to train; False only for a resumed run."""
        return self.__dict__.get("_has_trained", True)  # type: ignore[no-any-return]

    @property
    def is_before_shrinking(self) -> bool:
        """Whether the metrics are from before `--shrink`: no step was left to train."""
        return not self.has_trained and self.__dict__.get("_has_shrunk", False)

    @property
    def diverged(self) -> str:
        return self.__dict__.get("_diverged", "")  # type: ignore[no-any-return]

    @property
    def other_load(self) -> float | None:
        return self.__dict__.get("_other_load")

    @property
    def folder(self) -> Path | None:
        return self.__dict__.get("_folder")

    @property
    def has_history(self) -> bool:
        """Whether the result has the history of its run, as that of `placer.launch`."""
        return "_read_history" in self.__dict__

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        return self._kept("_read_history")  # type: ignore[no-any-return]

    @cached_property
    def params(self) -> Params:
        return self._kept("_read_params")  # type: ignore[no-any-return]

    @property
    def state(self) -> Params:
        params = self.params
        return {name: params[name] for name in self.__dict__["_state"]}

    def _kept(self, name: str) -> Any:
        if name not in self.__dict__:
            raise PlacerError(
                "only the result of placer.launch has a history and parameters"
            )
        return self.__dict__[name]()


class PredictionResult(
    msgspec.Struct, frozen=True, tag_field="event", tag="prediction_result"
):
    """The result of a prediction, which the control node reports as an event.

    Attributes:
        rows: the number of rows.
        samples_per_second: rows per second, without the time for compilation.
        bytes_sent: the payload bytes that each node sent.
        warnings: messages about processes that failed after the predictions were
            written.
        failed_late: whether a process failed after the predictions were written.
        tables: for each sparse table, the counts of the prediction over all nodes, as in
            `Result`.
    """

    rows: int
    samples_per_second: float
    bytes_sent: dict[str, int]
    warnings: tuple[str, ...] = ()
    failed_late: bool = False
    tables: dict[str, dict[str, int | float | None]] = {}


Outcome: TypeAlias = Result | PredictionResult
"""The result that the control node reports at the end of a run."""
