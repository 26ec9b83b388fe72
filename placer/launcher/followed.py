"""Makes the nodes of an engine's job look like local processes to the launcher.

The launcher watches a process by two descriptors: a pipe with its events, and a pidfd
that becomes readable at its end. For a job, a thread follows the events of the engine
(`Engine.watch`) and writes them to such pipes.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from placer.errors import PlacerError, RunError
from placer.launcher.engines.causes import is_cause_of_failure, tells_failure
from placer.launcher.engines.engine import (
    Job,
    JobEvent,
    JobFolder,
    JobNote,
    NodeEnded,
    NodeLines,
    NodeLog,
)
from placer.launcher.logs import log_path
from placer.launcher.watched_node import WatchedNode
from placer.runtime.callbacks.event_queue import write_all
from placer.runtime.control.events import SIGNAL_LINE, NodeWarning, Output, write_event
from placer.system.owned_threads import END_LIMIT, OwnedThreads

CANCEL_GRACE: Final = 60.0
"""Seconds in which a cancelled job must end."""


@dataclass(slots=True, kw_only=True)
class FollowedNode(WatchedNode):
    """A node of a job, with the interface of a local process.

    Attributes:
        on_stop: asks the job to stop after a step.
        on_kill: cancels the job.
        on_abandon: stops waiting for the end of the job.
        write_fd, end_fd: the ends for writing of `report_fd` and `pidfd`.
        end: how the node ended; None while it runs.
    """

    on_stop: Callable[[], None]
    on_kill: Callable[[], None]
    on_abandon: Callable[[], None]
    write_fd: int
    end_fd: int
    end: NodeEnded | None = None
    _ending: threading.Lock = field(default_factory=threading.Lock)
    _writing: threading.Lock = field(default_factory=threading.Lock)

    def kill(self) -> None:
        if self.running:
            self.on_kill()

    def order_stop(self) -> None:
        self.on_stop()

    def order_step(self) -> bool:
        return False  # With an engine, the only message to a node is to stop.

    def abandon(self) -> None:
        if self.running:
            self.on_abandon()

    def reap(self) -> None:
        assert self.end is not None
        self.running = False
        self.exit_status, self.why = self.end.status, self.end.why
        self.host = self.end.host

    def write(self, lines: Sequence[bytes]) -> None:
        """Pass on lines of events; block until the pipe has room. Do not call it from
        the thread that reads the lines."""
        text = b"".join(line + b"\n" for line in lines)
        with self._writing, suppress(BrokenPipeError):  # The launcher no longer reads.
            if self.end is None:
                write_all(self.write_fd, text)

    def note_end(self, end: NodeEnded) -> None:
        """Record how the node ended, unless it has ended before. Never waits for `write`."""
        with self._ending:
            if self.end is not None:
                return
            self.end = end
        os.close(self.end_fd)

    def close(self) -> None:
        os.close(self.report_fd)  # Closed first, because it ends a blocked `write`.
        self.note_end(NodeEnded(self.node, None))
        with self._writing:
            os.close(self.write_fd)
        os.close(self.pidfd)


class FollowedJob:
    """A job of an engine and the thread that follows it.

    The nodes exist before the job is submitted, so nothing can fail between the
    submission and the watch of the nodes.

    Args:
        name: the name of the engine.

    Attributes:
        remains: a warning that the job may still run, with the command to end it; empty
            otherwise.
    """

    def __init__(self, name: str) -> None:
        self.remains = ""
        self._name = name
        self._job: Job | None = None
        self._nodes: dict[str, FollowedNode] = {}
        self._ended = threading.Event()
        self._threads = OwnedThreads()
        self._is_given_up = False
        self._cancelled = False
        self._has_failed = False
        self._has_signal = False

    @property
    def nodes(self) -> list[WatchedNode]:
        """The nodes of the job; the first one is the control node."""
        return [*self._nodes.values()]

    @property
    def goes_on(self) -> bool:
        """True if the job keeps running when the launcher is killed."""
        return self._job is not None and bool(self._job.cancel_command)

    @contextmanager
    def open_nodes(self, names: Sequence[str], logs: Path) -> Iterator[None]:
        """Create the nodes of the job, with logs in a folder; the end of the context
        closes them. Raises RunError if the job has too many nodes."""
        with ExitStack() as exits:
            try:
                for name in names:
                    log = log_path(logs, name)
                    log.unlink(missing_ok=True)  # Remove the log of an earlier job.
                    exits.callback(self._open_node(name, log).close)
            except OSError as error:
                raise RunError(f"the job cannot be followed: {error}") from error
            yield

    def _open_node(self, node: str, log: Path) -> FollowedNode:
        report_fd, write_fd = os.pipe()
        try:
            pidfd, end_fd = os.pipe()
        except OSError:
            os.close(report_fd)
            os.close(write_fd)
            raise
        os.set_blocking(report_fd, False)
        made = FollowedNode(
            node=node,
            log=log,
            report_fd=report_fd,
            pidfd=pidfd,
            write_fd=write_fd,
            end_fd=end_fd,
            on_stop=self._stop,
            on_kill=self._cancel,
            on_abandon=self._abandon,
        )
        self._nodes[node] = made
        return made

    def follow(self, job: Job, events: Iterator[JobEvent], logs: str) -> None:
        """Start a thread that passes on the events of the job. The first event
        describes the job and says where its `logs` are."""
        self._job = job
        for node in self._nodes.values():
            node.job = job.title
        if job.folder is not None:
            self._log_in(job.folder)
        end = "ends with this launcher"
        if job.cancel_command:
            end = (
                "keeps running if this launcher is killed; end it with: "
                f"{job.cancel_command}"
            )

        def run() -> None:
            why = ""
            try:
                self._tell(f"{job.title} {end}")
                self._tell(logs)
                for event in events:
                    self._pass_on(event)
            except PlacerError as error:
                why = str(error)
            except BaseException as error:
                why = f"{type(error).__name__}: {error}"
                traceback.print_exception(error)  # This is a bug of the engine.
                self._end_unfollowed(job)
            finally:
                for node in self._nodes.values():
                    node.job_failure = why
                self._end_all()

        self._threads.begin(run, "placer job")

    def close(self) -> None:
        """Wait until the thread has ended, unless the launcher has given up on the job."""
        if not self._is_given_up:
            self._threads.join(END_LIMIT)

    def _end_unfollowed(self, job: Job) -> None:
        try:
            job.cancel()
        except Exception as error:
            self._note_remains(_in_short(error))

    def _pass_on(self, event: JobEvent) -> None:
        match event:
            case NodeLines():
                self._nodes[event.node].write(self._without_effects(event.lines))
            case NodeLog():
                with self._nodes[event.node].log.open("ab") as file:
                    file.write(event.text)
            case NodeEnded():
                self._has_failed |= is_cause_of_failure(event)
                self._nodes[event.node].note_end(event)
            case JobFolder(folder):
                self._log_in(folder)
            case JobNote(text, warns=True):
                self._warn(text)
            case JobNote(text):
                self._tell(text)

    def _log_in(self, folder: Path) -> None:
        """Note the folder in which the nodes write their logs."""
        for node in self._nodes.values():
            node.log = log_path(folder, node.node)

    def _without_effects(self, lines: Sequence[bytes]) -> Sequence[bytes]:
        """Drop the signals after a failure: the engine sends them to end the other nodes."""
        kept = []
        for line in lines:
            is_signal = line.startswith(SIGNAL_LINE)
            if not (is_signal and self._has_failed):
                kept.append(line)
                self._has_signal |= is_signal
            self._has_failed |= tells_failure(line)
        return kept

    def _tell(self, text: str) -> None:
        self._control.write([write_event(Output(self._name, text)).rstrip()])

    def _warn(self, text: str) -> None:
        self._control.write([write_event(NodeWarning(text)).rstrip()])

    @property
    def _control(self) -> FollowedNode:
        return next(iter(self._nodes.values()))

    def _end_all(self) -> None:
        self._ended.set()
        for node in self._nodes.values():
            node.note_end(NodeEnded(node.node, None))

    def _stop(self) -> None:
        if self._has_signal:
            return

        job = self._job
        assert job is not None

        def run() -> None:
            try:
                job.stop()
            except Exception as error:
                why = str(error) if isinstance(error, PlacerError) else _in_short(error)
                self._warn(f"{job.title} cannot be stopped: {why}")

        self._threads.begin(run, "placer job")

    def _cancel(self) -> None:
        """Start to cancel the job, once. It has `CANCEL_GRACE` seconds to end."""
        if self._cancelled:
            return
        self._cancelled = True
        job = self._job
        assert job is not None

        def run() -> None:
            why = ""
            try:
                job.cancel()
            except Exception as error:
                why = _in_short(error)
            if not why and not self._ended.wait(CANCEL_GRACE):
                why = f"it has not ended within {CANCEL_GRACE:g} s"
            if why:
                self._give_up(why)

        self._threads.begin(run, "placer job")

    def _abandon(self) -> None:
        self._give_up("a signal ended the wait for the job")

    def _give_up(self, why: str) -> None:
        self._is_given_up = True
        self._note_remains(why)
        self._end_all()

    def _note_remains(self, why: str) -> None:
        job = self._job
        assert job is not None
        if job.cancel_command:  # Without a command, the job ends with this process.
            self.remains = (
                f"{job.title} may still run: {why}; end it with: {job.cancel_command}"
            )


def _in_short(error: Exception) -> str:
    if isinstance(error, PlacerError):
        return error.message
    return f"{type(error).__name__}: {error}"
