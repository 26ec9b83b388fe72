"""The nodes of a job of an engine, as the launcher watches them.

The launcher watches processes: it reads their events from a pipe, and a descriptor tells
when they have ended. Here a thread follows the job (`Engine.watch`), and writes what it
hears to such pipes.
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
"""Seconds in which a job that was cancelled has to end."""


@dataclass(slots=True, kw_only=True)
class FollowedNode(WatchedNode):
    """A node of a job.

    Attributes:
        on_stop: asks the job to stop after a step.
        on_kill: cancels the job.
        on_abandon: waits no more for the end of the job.
        write_fd, end_fd: the other ends of `report_fd` and `pidfd`.
        end: how it has ended, once it has.
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
        return False  # engines have no way back to a node but to stop it

    def abandon(self) -> None:
        if self.running:
            self.on_abandon()

    def reap(self) -> None:
        assert self.end is not None
        self.running = False
        self.exit_status, self.why = self.end.status, self.end.why
        self.host = self.end.host

    def write(self, lines: Sequence[bytes]) -> None:
        """Pass on lines of events, and wait until there is room; not called by the
        thread that reads them."""
        text = b"".join(line + b"\n" for line in lines)
        with self._writing, suppress(BrokenPipeError):  # nobody watches it any more
            if self.end is None:
                write_all(self.write_fd, text)

    def note_end(self, end: NodeEnded) -> None:
        """Note how the node has ended, the first time; does not wait for a `write`."""
        with self._ending:
            if self.end is not None:
                return
            self.end = end
        os.close(self.end_fd)

    def close(self) -> None:
        os.close(self.report_fd)  # first: it ends a write that waits
        self.note_end(NodeEnded(self.node, None))
        with self._writing:
            os.close(self.write_fd)
        os.close(self.pidfd)


class FollowedJob:
    """A job, and what follows it.

    Its nodes are there before it is submitted, so that nothing can fail between that and
    the watch of them.

    Args:
        name: the name of the engine.

    Attributes:
        remains: why the job may still run after its end here, and how to end it.
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
        """Its nodes; the first is the control node."""
        return [*self._nodes.values()]

    @property
    def goes_on(self) -> bool:
        """Whether the job goes on if the launcher is killed."""
        return self._job is not None and bool(self._job.cancel_command)

    @contextmanager
    def open_nodes(self, names: Sequence[str], logs: Path) -> Iterator[None]:
        """Make the nodes of the job, with their logs in a folder, and close them at the end
        of the context. Raises RunError if there are too many of them."""
        with ExitStack() as exits:
            try:
                for name in names:
                    log = log_path(logs, name)
                    log.unlink(missing_ok=True)  # that of an earlier job
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
        """Start to pass on the events of the job, in a thread; first, what it is, and where
        its `logs` are."""
        self._job = job
        for node in self._nodes.values():
            node.job = job.title
            if job.folder is not None:
                node.log = log_path(job.folder, node.node)
        end = "ends with this launcher"
        if job.cancel_command:
            end = f"goes on if this launcher is killed; this ends it: {job.cancel_command}"

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
                traceback.print_exception(error)  # it is a mistake of the engine
                self._end_unfollowed(job)
            finally:
                for node in self._nodes.values():
                    node.job_failure = why
                self._end_all()

        self._threads.begin(run, "placer job")

    def close(self) -> None:
        """Wait until the job is not followed any more, unless its end is not waited for."""
        if not self._is_given_up:
            self._threads.join(END_LIMIT)

    def _end_unfollowed(self, job: Job) -> None:
        """Cancel a job that cannot be followed, for no reason that its engine knows."""
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
            case JobNote(text, warns=True):
                self._warn(text)
            case JobNote(text):
                self._tell(text)

    def _without_effects(self, lines: Sequence[bytes]) -> Sequence[bytes]:
        """Return the lines without signals that follow a failure: an engine ends the
        other nodes then."""
        kept = []
        for line in lines:
            is_signal = line.startswith(SIGNAL_LINE)
            if not (is_signal and self._has_failed):
                kept.append(line)
                self._has_signal |= is_signal
            self._has_failed |= tells_failure(line)
        return kept

    def _tell(self, text: str) -> None:
        """Tell the user something, as a line that the engine has printed."""
        self._control.write([write_event(Output(self._name, text)).rstrip()])

    def _warn(self, text: str) -> None:
        self._control.write([write_event(NodeWarning(text)).rstrip()])

    @property
    def _control(self) -> FollowedNode:
        return next(iter(self._nodes.values()))

    def _end_all(self) -> None:
        """Note the end of all nodes that have not ended."""
        self._ended.set()
        for node in self._nodes.values():
            node.note_end(NodeEnded(node.node, None))

    def _stop(self) -> None:
        """Start to ask the nodes to stop and save, unless they have a signal already."""
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
        """Start to cancel the job, once; it has `CANCEL_GRACE` to end."""
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
        self._give_up("a signal has ended the wait for its end")

    def _give_up(self, why: str) -> None:
        """Note the end of all nodes, and that the job may still run."""
        self._is_given_up = True
        self._note_remains(why)
        self._end_all()

    def _note_remains(self, why: str) -> None:
        job = self._job
        assert job is not None
        if job.cancel_command:  # else it ends with this process
            self.remains = (
                f"{job.title} may still run: {why}; end it by: {job.cancel_command}"
            )


def _in_short(error: Exception) -> str:
    if isinstance(error, PlacerError):
        return error.message
    return f"{type(error).__name__}: {error}"
