"""Writes the files of a run: its command, history, events and result."""

from __future__ import annotations

import fcntl
import time
from bisect import bisect_left
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Final

import msgspec

from placer.errors import PlacerError, RunError, RunWarning
from placer.launcher.node_facts import NodeFacts
from placer.launcher.other_load import OtherLoad
from placer.launcher.run_command import settings_of
from placer.launcher.tables_file import TablesFile, write_json
from placer.plan.plan import read_plan
from placer.report.run_files import (
    COMMAND,
    EVENTS,
    FAILED,
    FINISHED,
    HISTORY,
    INTERRUPTED,
    RESULT,
    Command,
    Continuation,
    RunSummary,
    is_run,
    parse_lines,
    read_command,
    read_lines,
    read_run,
)
from placer.runtime.control.events import (
    CheckpointSaved,
    Event,
    FewerNodes,
    NodeFailure,
    Output,
    PassBegun,
    Predicted,
    Recovered,
    Resumed,
    SignalReceived,
    State,
    Step,
)
from placer.runtime.control.result import PredictionResult, Restart, Result
from placer.runtime.signals.signals import EndedBySignal
from placer.system.callsite import warn_at_caller
from placer.system.files.atomic import atomic_file, mode_of

FLUSH_INTERVAL: Final = 1.0
"""The shortest time between two writes to a file, in seconds."""
MAX_HISTORY: Final = 32 << 20
"""The largest size of a history in bytes. A larger history loses every second step."""
MAX_EVENTS: Final = 4 << 20
"""The size of the events in bytes after which only failures, recoveries and signals are kept."""
MAX_CONTINUED: Final = 100
"""The largest number of recorded commands that continued a run."""
_ALWAYS_KEPT: Final = (FewerNodes, NodeFailure, Recovered, SignalReceived)
"""The events that are also kept if there are many events."""
_REPEATED: Final = ("running", "evaluating", "waiting for callbacks")
"""States that a node enters repeatedly."""


class RunRecord:
    """Writes the files of a run, as a context manager around the run.

    No file is written before the first step. If a file cannot be written, the run
    continues without a record, and the exit of the context warns.

    Args:
        open_folder: returns the folder of the run; called at the first step, with the
            event of a resumed run.
        command: the facts about the run.
        history: the file of `--history`. If it is the history of the run, the record
            does not write it.
        is_here: whether the nodes run on this machine, whose load the record then has.

    Attributes:
        has_trained: True after the first step.
        folder: the folder of the run; None before the first step.
    """

    def __init__(
        self,
        open_folder: Callable[[Resumed | None], Path],
        command: Command,
        history: Path | None = None,
        *,
        is_here: bool = True,
    ) -> None:
        self._open_folder, self._command = open_folder, command
        self._own_history = history
        self.folder: Path | None = None
        self._history: _Lines | None = None
        self._events = _Lines(MAX_EVENTS)
        self._states: dict[str, str] = {}
        self._facts = NodeFacts()
        self._tables = TablesFile()
        self._load = OtherLoad() if is_here else None
        self._resumed: Resumed | None = None
        self._pass: PassBegun | None = None
        self._end_of_pass: dict[str, Any] | None = None  # waits for the nodes' counts
        self._summary = RunSummary(command)
        self._result: Result | None = None
        self._best: str | None = None
        self._restarts: list[Restart] = []
        self._problem: OSError | PlacerError | None = None
        # The nodes of a run in one process report from their own threads.
        self._lock = Lock()
        self.has_trained = False

    def note(self, event: Event) -> None:
        """Record an event of the run."""
        with self._lock:
            if self._problem is None:
                try:
                    self._record(event)
                except (OSError, PlacerError) as error:
                    self._problem = error

    def __enter__(self) -> RunRecord:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._lock:
            if error is not None and not self.has_trained:
                return
            try:
                if self._problem is None:
                    self._close(error)
            except (OSError, PlacerError) as problem:
                self._problem = problem
            finally:
                for lines in filter(None, (self._events, self._history)):
                    lines.close()
        if self._problem is not None:
            warn_at_caller(
                f"the files of the run are incomplete: {self._problem}", RunWarning
            )

    def _record(self, event: Event) -> None:
        match event:
            case Step():
                self.has_trained = True
                if self.folder is None:
                    self._open(event.step)
                line = history_line(event)
                begun = self._pass
                if begun is not None and event.step == begun.last_step:
                    line["pass"] = pass_facts(begun, event)
                self._summary.add(line)
                self._add_end_of_pass()
                if "pass" in line:
                    self._end_of_pass = line
                elif self._history is not None:
                    facts = self._facts.take() if event.eval is not None else {}
                    self._history.add({**line, **facts})
                if self._is_end_counted():
                    self._add_end_of_pass()
            case Result():
                self._result = event
                if self.folder is None:
                    self._open()
                end = self._summary.end(FINISHED)
                event.keep_record(
                    folder=self.folder,
                    best_eval={k: v for k, v in end.best_eval.items() if v is not None},
                    best_step=end.best_step,
                    has_trained=self.has_trained,
                    has_shrunk="shrink" in self._command.options,
                    diverged=end.diverged,
                    other_load=self._load.cores() if self._load is not None else None,
                )
            case PredictionResult() | Predicted() | Output():
                return
            case State():
                self._facts.add(event)
                if self._is_end_counted():
                    self._add_end_of_pass()
                self._tables.add(event)
                if self._load is not None:
                    self._load.add(event)
                known = self._states.get(event.node)
                if event.state in _REPEATED or event.state == known:
                    self._flush()
                    return
                self._states[event.node] = event.state
                self._add_event(
                    {
                        "event": "state",
                        "node": event.node,
                        "state": event.state,
                        "step": event.step,
                    }
                )
            case _:
                if isinstance(event, Recovered) and event.replaces:
                    self._go_back(event.step)
                if isinstance(event, PassBegun):
                    self._pass = event
                if isinstance(event, Resumed):
                    self._resumed = event
                if isinstance(event, CheckpointSaved) and event.best:
                    self._best = event.path
                if isinstance(event, Recovered):
                    self._restarts.append(event.restart)
                if isinstance(event, FewerNodes):
                    self._change_build(Path(event.build))
                always = isinstance(event, _ALWAYS_KEPT)
                self._add_event(msgspec.to_builtins(event), always=always)
        self._flush()

    def _add_end_of_pass(self) -> None:
        """Add the last step of a pass to the history, unless it was added."""
        line, self._end_of_pass = self._end_of_pass, None
        if line is not None and self._history is not None:
            self._history.add({**line, **self._facts.take()})

    def _is_end_counted(self) -> bool:
        """Whether all nodes have reported their counts at the end of a pass."""
        line = self._end_of_pass
        return line is not None and self._facts.has_ended(line["step"])

    def _add_event(self, event: dict[str, Any], *, always: bool = False) -> None:
        line = {"time": round(time.time(), 3), **event}
        self._events.add(line, always=always)

    def _open(self, first: int | None = None) -> None:
        """Create the files of the run, or extend the files of a continued run.

        Args:
            first: the first step; None if the run has no steps. A run that is continued
                without further steps keeps its command and its result.
        """
        folder = self._open_folder(self._resumed)
        # The lock comes first: another launcher may be continuing the same run.
        self._events.open(folder / EVENTS)
        self.folder = folder
        command, is_continued = self._command, is_run(folder)
        if is_continued:
            command = self._continued(read_command(folder))
            self._summarize(folder, first)
        if first is not None or not is_continued:
            write_json(folder / COMMAND, msgspec.to_builtins(command))
            (folder / RESULT).unlink(missing_ok=True)
        own = self._own_history
        if own is None or own.resolve() != (folder / HISTORY).resolve():
            self._history = _Lines(MAX_HISTORY, thins=True)
            self._history.open(folder / HISTORY, first)

    def _summarize(self, folder: Path, before: int | None) -> None:
        """Summarize the steps in the history before a step."""
        self._summary = RunSummary(self._command)
        for line in read_lines(folder / HISTORY):
            if before is None or line["step"] < before:
                self._summary.add(line)

    def _go_back(self, step: int) -> None:
        """Remove the steps after a step, because other steps will replace them."""
        self._add_end_of_pass()
        if self.folder is None:
            return
        if self._history is not None:
            self._history.cut(step + 1)
        self._summarize(self.folder, step + 1)

    def _change_build(self, build: Path) -> None:
        """Note that the run goes on with the nodes of another build."""
        self._add_end_of_pass()
        facts = {
            "settings": settings_of(build, read_plan(build)),
            "build": str(build.resolve()),
        }
        self._command = msgspec.structs.replace(self._command, **facts)
        self._facts, self._tables = NodeFacts(), TablesFile()
        if self.folder is not None:
            command = msgspec.structs.replace(read_command(self.folder), **facts)
            write_json(self.folder / COMMAND, msgspec.to_builtins(command))

    def _continued(self, earlier: Command) -> Command:
        """Return the facts about a run that this command continues."""
        this, resumed = self._command, self._resumed
        step = resumed.step if resumed is not None else 0
        continued = *earlier.continued, Continuation(this.command, this.started, step)
        return msgspec.structs.replace(
            this,
            command=earlier.command,
            started=earlier.started,
            checkpoints=this.checkpoints or earlier.checkpoints,
            continued=continued[-MAX_CONTINUED:],
        )

    def _flush(self) -> None:
        if self.folder is not None:
            self._events.flush()
            if self._history is not None:
                self._history.flush()
            if self.has_trained:
                self._tables.flush(self.folder)

    def _close(self, error: BaseException | None) -> None:
        if self.folder is None:
            self._open()
        assert self.folder is not None
        self._add_end_of_pass()
        if self.has_trained or not _has_finished(self.folder):
            self._tables.write(self.folder)
            write_json(self.folder / RESULT, self._end(error))
        for lines in filter(None, (self._events, self._history)):
            lines.write()

    def _end(self, error: BaseException | None) -> dict[str, Any]:
        """Return the content of `result.json`."""
        ended, text = FINISHED, None
        if error is not None:
            ended = FAILED if isinstance(error, Exception) else INTERRUPTED
            text = _message(error)
        end = self._summary.end(ended, text)
        end = msgspec.structs.replace(
            end, best=self._best, restarts=tuple(self._restarts)
        )
        shown: dict[str, Any] = msgspec.to_builtins(end)
        if self._load is not None:
            shown["other_load"] = self._load.cores()
        if self._result is not None:
            shown |= msgspec.to_builtins(self._result)
            del shown["event"]
            if not self.has_trained:
                shown["samples_per_second"] = end.samples_per_second
        return shown


def _has_finished(folder: Path) -> bool:
    """Return True if the folder has the result of a run that finished earlier."""
    return (folder / RESULT).is_file() and read_run(folder).end.ended == FINISHED


def _message(error: BaseException) -> str:
    if isinstance(error, EndedBySignal):
        return error.outcome
    # An interruption without a message may have a cause with a message.
    return str(error) or str(error.__cause__ or "") or type(error).__name__


def history_line(step: Step) -> dict[str, Any]:
    """Return the entry of a step in the history of a run's folder."""
    line = step.history_line()
    if step.samples_per_second:  # 0 in the first step, which is not measured.
        line["samples_per_second"] = round(step.samples_per_second, 1)
    line["learning_rates"] = step.learning_rates
    return line


def pass_facts(begun: PassBegun, last: Step) -> dict[str, Any]:
    """Return the facts about a pass of a stream in the history line of its last step."""
    names = begun.files[:1] + begun.files[-1:]
    files = dict(zip(("first_file", "last_file"), names, strict=False))
    return {
        "files": len(begun.files),
        **files,
        "rows": begun.rows,
        "left_out": begun.left_out,
        "waited": round(begun.waited, 3),
        "metrics": last.epoch_metrics or {},
    }


class _Lines:
    """A file of JSON lines with a bounded size, which is written about once a second.

    With `thins`, a file that is too large loses every second step. Otherwise, new lines
    are dropped, except those added with `always`.
    """

    def __init__(self, limit: int, *, thins: bool = False) -> None:
        self._limit, self._thins = limit, thins
        self._file: FileIO | None = None
        self._path = Path()
        self._pending: list[bytes] = []
        self._size = 0
        self._every = 1
        self._next_flush = 0.0

    def open(self, path: Path, before: int | None = None) -> None:
        """Open the file, and append to it if it exists.

        An incomplete last line and the lines from step `before` on are removed.
        """
        self._path = path
        # Without a buffer, a failed write is not repeated when the file is closed.
        self._file = path.open("ab", buffering=0)
        if not self._thins:
            self._lock()
        lines = path.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if line.endswith(b"\n")]
        if before is not None:
            kept = _lines_before(path, kept, before)
        self._size += self._file.truncate(sum(map(len, kept)))

    def cut(self, before: int) -> None:
        """Remove the lines from step `before` on."""
        self.write()
        assert self._file is not None
        lines = self._path.read_bytes().splitlines(keepends=True)
        kept = _lines_before(self._path, lines, before)
        self._size = self._file.truncate(sum(map(len, kept)))

    def _lock(self) -> None:
        assert self._file is not None
        try:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunError(
                f"another launcher writes the files of the run in '{self._path.parent}'"
            ) from error

    def _replace(self, lines: list[bytes]) -> None:
        with atomic_file(self._path, mode_of(self._path)) as file:
            file.writelines(lines)

    def add(self, line: dict[str, Any], *, always: bool = False) -> None:
        """Add a line, which the next `flush` may write."""
        if self._thins and not _is_kept(line, self._every):
            return
        if not self._thins and self._size >= self._limit and not always:
            return
        # JSON has no NaN and infinity; they become null.
        text = msgspec.json.encode(line) + b"\n"
        self._size += len(text)
        self._pending.append(text)

    def flush(self) -> None:
        """Write the pending lines if the last write was `FLUSH_INTERVAL` ago or earlier."""
        now = time.monotonic()
        if self._pending and now >= self._next_flush:
            self._next_flush = now + FLUSH_INTERVAL
            self.write()

    def close(self) -> None:
        """Close the file if it is open. Pending lines are lost."""
        if self._file is not None:
            self._file.close()

    def write(self) -> None:
        """Write the pending lines."""
        assert self._file is not None
        text = b"".join(self._pending)
        self._pending.clear()
        while text:
            text = text[self._file.write(text) :]
        if self._thins and self._size > self._limit:
            self._thin()

    def _thin(self) -> None:
        """Remove steps until the file has half of its largest size or less."""
        assert self._file is not None
        lines = self._path.read_bytes().splitlines(keepends=True)
        while (size := sum(map(len, lines))) > self._limit // 2:
            self._every *= 2
            every = self._every
            kept = [
                each for each in lines if _is_kept(msgspec.json.decode(each), every)
            ]
            # A run that evaluates after every step loses evaluations as well.
            lines = kept if len(kept) <= 0.75 * len(lines) else lines[1::2]
        self._replace(lines)
        self._file.close()
        self._file = self._path.open("ab", buffering=0)
        self._size = size


def _is_kept(line: dict[str, Any], every: int) -> bool:
    """Whether a long history keeps the line of a step."""
    return "eval" in line or "pass" in line or line["step"] % every == 0


def _lines_before(path: Path, lines: list[bytes], step: int) -> list[bytes]:
    """Return the lines of a history before a step."""
    steps = [line["step"] for line in parse_lines(path, lines)]
    return lines[: bisect_left(steps, step)]
