"""Reads the files that a run keeps in its folder."""

from __future__ import annotations

import fcntl
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from math import ceil, isfinite
from pathlib import Path
from statistics import fmean
from typing import Any, Final, TypeVar

import msgspec

from placer.errors import PlacerError
from placer.plan.plan import OF_RUN, RUNS, is_build, read_plan
from placer.plan.settings.evaluation_and_stopping import Best
from placer.runtime.control.result import Restart
from placer.runtime.control.table_counts import TableCounts
from placer.system.files.nearest_path import path_hint

Kind = TypeVar("Kind")

COMMAND: Final = "command.json"
"""The file with the command, the settings, the versions and the machine of a run."""
HISTORY: Final = "history.jsonl"
"""The file with one JSON line per step."""
EVENTS: Final = "events.jsonl"
"""The file with one JSON line per event. The launcher locks it during the run."""
RESULT: Final = "result.json"
"""The file with the result of a run, also of a failed or interrupted one."""
TABLES: Final = "tables.json"
"""The file with the counts of sparse tables on each node, written every few seconds."""
KEPT: Final = (COMMAND, HISTORY, EVENTS, RESULT, TABLES)
"""The files that a run keeps in its folder."""

NAME: Final = "name"
"""The setting with the name of the model."""
MODEL_DIGEST: Final = "model"
"""The setting with a digest of the parameters, and of the ops for a prediction."""
GRAPH_DIGEST: Final = "graph"
"""The setting with a digest of the placed graph. It changes with the spec's ops, nodes and
places."""

_FIRST_ROWS: Final = 32
"""The first loss of a run is a mean over the first steps with at least this many rows."""
_LAST_STEPS: Final = 10
"""The last loss of a run is a mean over this many steps."""

FINISHED: Final = "finished"
FAILED: Final = "failed"
INTERRUPTED: Final = "interrupted"
RUNNING: Final = "running"
KILLED: Final = "killed"
"""State of a run whose launcher ended without writing a result."""


class Continuation(msgspec.Struct, frozen=True):
    """A command that continued a run.

    Attributes:
        command: the command line.
        started: the time of its start, in seconds since 1970.
        step: the step of the checkpoint.
    """

    command: str
    started: float
    step: int = 0


class Command(msgspec.Struct, frozen=True):
    """The content of `command.json`.

    In a continued run, `command` and `started` belong to the first command, and all other
    fields belong to the last command.

    Attributes:
        name: the name of the model.
        command: the command line.
        started: the time of the start, in seconds since 1970.
        spec: the path of the spec.
        set: the values of `--set`, by key.
        settings: the settings of the run that can be compared with other runs.
        options: the options of the run that differ from their defaults.
        versions: the versions of placer, Python and important packages.
        machine: the name, system and cores of the machine.
        build: the path of the build.
        checkpoints: the folder of the run's checkpoints; None if it saves none.
        continued: the last commands that continued the run.
        monitor: the metric that decides which evaluation is the best; None if the run
            does not compare its evaluations.
    """

    name: str
    command: str
    started: float
    spec: str
    set: dict[str, Any]
    settings: dict[str, Any]
    options: dict[str, Any]
    versions: dict[str, str]
    machine: dict[str, Any]
    build: str = ""
    checkpoints: str | None = None
    continued: tuple[Continuation, ...] = ()
    monitor: Best | None = None


class StoredRows(msgspec.Struct, frozen=True):
    """The rows, the bytes and the counted keys without a row that a sparse table has at
    the end of a run."""

    rows: int
    nbytes: int
    counted: int = 0


class RunTables(msgspec.Struct, frozen=True):
    """The content of `tables.json`, which a run with sparse tables writes.

    Attributes:
        step: the last step that a node with tables has begun.
        time: the time of the counts, in seconds since 1970.
        tables: the counts on each node that stores a table, by table.
    """

    step: int
    time: float
    tables: dict[str, dict[str, TableCounts]]


class RunEnd(msgspec.Struct, frozen=True):
    """The fields of `result.json` that every run has.

    Attributes:
        ended: "finished", "failed" or "interrupted"; "running" and "killed" are for runs
            without the file.
        error: the root cause of a failure, or the message of an interruption.
        seconds: the time from the start of the first step to the end of the last one.
        steps: the number of training steps.
        metrics: the metrics of the last epoch, or of the last step of an unfinished run.
        eval: the metrics of the last evaluation.
        samples_per_second: rows of the global batch per second; None if it was not
            measured, because the run had only one step.
        eval_step: the step of the last evaluation.
        best_eval: the metrics of the best evaluation; empty if the run does not compare
            its evaluations.
        best_step: the step of the best evaluation.
        warnings: the warnings of the result, such as failures after the last step.
        failed_late: whether a process failed after the result was complete.
        best: the path of the checkpoint of the best evaluation, if one was saved.
        staleness: in asynchronous training, how many gradients were applied with each
            staleness.
        staleness_bound: the largest possible staleness; None without a bound.
        geo_staleness: the same as `staleness` for differences of workers (`geo`).
        tables: the sizes of sparse tables, by name.
        diverged: a sentence about a loss that rose to more than twice its first value;
            empty if it did not.
        table_rows: the number of rows of each sparse table on each node.
        table_counted: the same for counted keys without a row.
        table_bytes: the same for the memory in bytes.
        other_load: the number of cores that other programs used during the run; None if
            it was not measured.
        restarts: the failures after which the run went on.
    """

    ended: str
    error: str | None = None
    seconds: float = 0.0
    steps: int = 0
    metrics: dict[str, float | None] = {}
    eval: dict[str, float | None] = {}
    samples_per_second: float | None = None
    eval_step: int | None = None
    best_eval: dict[str, float | None] = {}
    best_step: int | None = None
    warnings: tuple[str, ...] = ()
    failed_late: bool = False
    best: str | None = None
    staleness: dict[str, int] = {}
    staleness_bound: int | None = None
    geo_staleness: dict[str, int] = {}
    other_load: float | None = None
    tables: dict[str, StoredRows] = {}
    restarts: tuple[Restart, ...] = ()
    diverged: str = ""
    table_rows: dict[str, dict[str, int]] = {}
    table_counted: dict[str, dict[str, int]] = {}
    table_bytes: dict[str, dict[str, int]] = {}


class Run(msgspec.Struct, frozen=True):
    """A run that was read from its folder.

    Attributes:
        folder: the folder of the run.
        command: the content of `command.json`.
        end: the state of the run and its last metrics.
    """

    folder: Path
    command: Command
    end: RunEnd

    @property
    def settings(self) -> Mapping[str, Any]:
        """The name of the model, and the settings and options of the run. The values of
        `--set` are included where no setting has the same key."""
        command = self.command
        return {
            NAME: command.name,
            **command.set,
            **command.settings,
            **command.options,
        }

    @property
    def evaluation(self) -> Mapping[str, float | None]:
        """The metrics of the best evaluation, or of the last one if the run does not
        compare its evaluations."""
        return self.end.best_eval or self.end.eval

    @property
    def build(self) -> Path | None:
        """The build of the run; None if it is missing or has changed since."""
        graph = self.command.settings.get(GRAPH_DIGEST)
        for folder in (self.folder / OF_RUN, Path(self.command.build or os.devnull)):
            if is_build(folder):
                digest = read_plan(folder).files["graph.txt"]
                if graph is None or digest.startswith(str(graph)):
                    return folder
        return None

    def tables(self) -> RunTables | None:
        """Return the last counts of the sparse tables; None if the run has written none.

        Raises:
            PlacerError: the file is damaged or cannot be read.
        """
        file = self.folder / TABLES
        return _read(file, RunTables) if file.is_file() else None

    def history(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of the history, which docs/reference/runs.md describes.

        Raises:
            PlacerError: the file is damaged or cannot be read.
        """
        return read_lines(self.folder / HISTORY)

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events, which docs/reference/runs.md describes.

        Raises:
            PlacerError: the file is damaged or cannot be read.
        """
        return read_lines(self.folder / EVENTS)


def read_run(folder: Path) -> Run:
    """Return the run in a folder. Its history and events are read when they are needed.

    Raises:
        PlacerError: the folder is not the folder of a run, or a file is damaged.

    Example:
        run = read_run(Path("runs/digits-1"))
        losses = [line["metrics"]["loss"] for line in run.history()]
    """
    if not is_run(folder):
        _check_folder(folder)
        raise PlacerError(
            f"'{folder}' is not the folder of a run: it contains no {COMMAND}",
            hint="list the runs of a folder with: placer runs DIR",
        )
    command = read_command(folder)
    if (folder / RESULT).is_file():
        return Run(folder, command, _read(folder / RESULT, RunEnd))
    return Run(folder, command, _unfinished(folder, command))


def is_run(folder: Path) -> bool:
    """Return True if a folder is the folder of a run."""
    return (folder / COMMAND).is_file()


def run_of_trace(trace: Path, digest: str, folder: Path = RUNS) -> Path | None:
    """Return the run in a folder that wrote a trace, or else the newest run of the traced
    build; None without such a run.

    Args:
        digest: the digest of the plan of the traced build.
    """
    try:
        runs, _ = find_readable_runs(folder)
    except PlacerError:  # The folder has no runs.
        return None
    runs.sort(key=lambda run: _trace_of(run) == trace.resolve())
    for run in reversed(runs):
        try:
            if run.build is not None and read_plan(run.build).digest == digest:
                return run.folder
        except PlacerError:  # Its build is damaged.
            continue
    return None


def _trace_of(run: Run) -> Path | None:
    named = run.command.options.get("trace")
    return None if named is None else Path(str(named)).resolve()


def find_readable_runs(folder: Path) -> tuple[list[Run], list[PlacerError]]:
    """Return the runs in a folder, oldest first, and the errors of damaged runs.

    Raises:
        PlacerError: the folder contains no run, or is the folder of a damaged run.
    """
    if is_run(folder):
        return [read_run(folder)], []
    _check_folder(folder)
    found = sorted(each for each in folder.iterdir() if is_run(each))
    if not found:
        raise PlacerError(
            f"the folder '{folder}' contains no runs",
            hint="name a folder of runs, such as runs, or the folder of one run",
        )
    runs, errors = [], []
    for each in found:
        try:
            runs.append(read_run(each))
        except PlacerError as error:
            errors.append(error)
    runs.sort(key=lambda run: (run.command.started, run.folder.name))
    return runs, errors


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise PlacerError(
            f"the folder '{folder}' does not exist",
            hint=path_hint(folder, Path.is_dir, (RUNS,)),
        )


def read_command(folder: Path) -> Command:
    """Return the content of `command.json`. Raises PlacerError if it is damaged."""
    return _read(folder / COMMAND, Command)


def _read(file: Path, kind: type[Kind]) -> Kind:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise PlacerError(
            f"cannot read '{file}': {_reason(error)}",
            hint=f"remove the file, or move the run '{file.parent}' to another folder",
        ) from error


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


class RunSummary:
    """Collects the last step, the last evaluation and the best evaluation of a run, and
    the first and the last losses.

    Args:
        command: the facts about the run.
    """

    def __init__(self, command: Command) -> None:
        self._monitor = command.monitor
        self._loss = command.settings.get("train.minimize")
        batch = command.settings.get("data.train.batch", _FIRST_ROWS)
        self._first_steps = min(_LAST_STEPS, ceil(_FIRST_ROWS / batch))
        self._first_losses: list[float] = []
        self._last_losses: deque[float] = deque(maxlen=_LAST_STEPS)
        self._last: Mapping[str, Any] = {}
        self._eval: Mapping[str, Any] = {}
        self._best: Mapping[str, Any] = {}

    def add(self, line: Mapping[str, Any]) -> None:
        """Add the next line of the history."""
        self._last = line
        loss = line.get("metrics", {}).get(self._loss)
        if loss is not None:
            if len(self._first_losses) < self._first_steps:
                self._first_losses.append(loss)
            self._last_losses.append(loss)
        if "eval" in line:
            self._eval = line
            if self._is_best(line["eval"]):
                self._best = line

    def _is_best(self, evaluation: Mapping[str, float | None]) -> bool:
        if self._monitor is None:
            return False
        value = evaluation.get(self._monitor.metric)
        best = self._best.get("eval", {}).get(self._monitor.metric)
        return value is not None and self._monitor.improves(value, best)

    def _diverged(self) -> str:
        if len(self._last_losses) < _LAST_STEPS:
            return ""
        first, last = fmean(self._first_losses), fmean(self._last_losses)
        if not (isfinite(last) and last - first > abs(first)):
            return ""
        return (
            f"the loss rose from {first:.4g} to {last:.4g}, the mean of the last"
            f" {_LAST_STEPS} steps"
        )

    def end(self, ended: str, error: str | None = None) -> RunEnd:
        """Return the facts about the run after the lines so far."""
        last = self._last
        return RunEnd(
            ended,
            error,
            seconds=last.get("seconds", 0.0),
            steps=last.get("step", 0),
            metrics=last.get("metrics", {}),
            eval=self._eval.get("eval", {}),
            samples_per_second=last.get("samples_per_second"),
            eval_step=self._eval.get("step"),
            best_eval=self._best.get("eval", {}),
            best_step=self._best.get("step"),
            diverged=self._diverged(),
        )


def _unfinished(folder: Path, command: Command) -> RunEnd:
    """Return the facts about a run without a result, from its history."""
    summary = RunSummary(command)
    for line in read_lines(folder / HISTORY):
        summary.add(line)
    return summary.end(RUNNING if is_running(folder) else KILLED)


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file with one per line, or nothing if it is missing.
    An incomplete last line, which a killed launcher leaves, is skipped.

    Raises:
        PlacerError: a line is damaged, or the file cannot be read.
    """
    if not file.is_file():
        return
    try:
        with file.open("rb") as lines:
            yield from parse_lines(file, lines)
    except OSError as error:
        raise PlacerError(f"cannot read '{file}': {_reason(error)}") from error


def parse_lines(file: Path, lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the JSON object of each complete line of `file`. Raises PlacerError for a
    damaged line."""
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):
            return
        try:
            yield decode(line)
        except msgspec.DecodeError as error:
            raise PlacerError(
                f"cannot read '{file}': line {number} is damaged: {error}",
                hint="remove the line to read the rest of the file",
            ) from error


def is_running(folder: Path) -> bool:
    """Return True if the launcher of a run holds the lock of the run's events.

    Raises:
        PlacerError: the events cannot be read.
    """
    file = folder / EVENTS
    if not file.is_file():
        return False
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError as error:
        raise PlacerError(f"'{file}' cannot be read: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
