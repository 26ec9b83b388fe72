"""The nodes of a job of an engine, as the launcher watches them.

The launcher watches processes: it reads their events from a pipe, and a descriptor tells
when they have ended. Here a thread follows the job (`Engine.watch`), and writes what it
hears to such pipes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from placer.engines.engine import Job, JobEvent, JobNote, NodeEnded, NodeLines, NodeLog
from placer.errors import PlacerError
from placer.launcher.watched_node import WatchedNode
from placer.runtime.run.event_queue import write_all
from placer.runtime.run.events import NodeWarning, Output, write_event
from placer.runtime.run.signals import END_SIGNALS

CANCEL_GRACE: Final = 60.0
"""Seconds in which a job that was cancelled has to end."""
_SIGNAL: Final = b'{"event": "signal"'
_FAILED: Final = b'{"event": "failed"'
"""How the lines of these events begin; see `write_event`."""
_ROOT: Final = b'"root": true'
"""What the line of a failure has if it is the node's own."""


@dataclass(slots=True, kw_only=True)
class FollowedNode(WatchedNode):
    """A node of a job.

    Attributes:
        on_stop: asks the job to stop after a step.
        on_kill: cancels the job.
        write_fd, end_fd: the other ends of `report_fd` and `pidfd`.
        end: how it has ended, once it has.
    """

    on_stop: Callable[[], None]
    on_kill: Callable[[], None]
    write_fd: int
    end_fd: int
    end: NodeEnded | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def kill(self) -> None:
        if self.running:
            self.on_kill()

    def order_stop(self) -> None:
        self.on_stop()

    def reap(self) -> None:
        assert self.end is not None
        self.running = False
        self.exit_status, self.why = self.end.status, self.end.why
        self.host = self.end.host

    def write(self, lines: Sequence[bytes]) -> None:
        """Pass on lines of events, and wait until there is room; not called by the
        thread that reads them."""
        text = b"".join(line + b"\n" for line in lines)
        with self.lock, suppress(BrokenPipeError):  # nobody watches the node any more
            if self.end is None:
                write_all(self.write_fd, text)

    def note_end(self, end: NodeEnded) -> None:
        """Note how the node has ended, the first time."""
        with self.lock:
            if self.end is None:
                self.end = end
                os.close(self.write_fd)
                os.close(self.end_fd)

    def close(self) -> None:
        os.close(self.report_fd)  # first: it ends a write that waits
        self.note_end(NodeEnded(self.node, None))
        os.close(self.pidfd)


class FollowedJob:
    """A job, and what follows it.

    Args:
        name: the name of the engine.
        job: the job.
        logs: the folder with the log of each node.
    """

    def __init__(self, name: str, job: Job, logs: Path) -> None:
        self._name, self._job, self._logs = name, job, logs
        self._nodes: dict[str, FollowedNode] = {}
        self._ended = threading.Event()
        self._cancelled = False
        self._has_failed = False
        self._has_signal = False

    def make_node(self, node: str, log: Path) -> FollowedNode:
        """Return a node of the job, which `follow` then follows."""
        report_fd, write_fd = os.pipe()
        pidfd, end_fd = os.pipe()
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
        )
        self._nodes[node] = made
        return made

    def follow(self, events: Iterator[JobEvent]) -> None:
        """Start to pass on the events of the job, in a thread."""

        def run() -> None:
            why = ""
            try:
                for event in events:
                    self._pass_on(event)
            except PlacerError as error:
                why = str(error)
            except BaseException as error:
                why = f"{type(error).__name__}: {error}"
                raise
            finally:
                for node in self._nodes.values():
                    node.job_failure = why
                self._end_all("")

        _start(run)

    def _pass_on(self, event: JobEvent) -> None:
        match event:
            case NodeLines():
                self._nodes[event.node].write(self._without_effects(event.lines))
            case NodeLog():
                with self._nodes[event.node].log.open("ab") as file:
                    file.write(event.text)
            case NodeEnded():
                self._has_failed |= _is_root(event)
                self._nodes[event.node].note_end(event)
            case JobNote():
                self._tell(event.text)

    def _without_effects(self, lines: Sequence[bytes]) -> Sequence[bytes]:
        """Return the lines without signals that follow a failure: an engine ends the
        other nodes then."""
        kept = []
        for line in lines:
            is_signal = line.startswith(_SIGNAL)
            if not (is_signal and self._has_failed):
                kept.append(line)
                self._has_signal |= is_signal
            self._has_failed |= line.startswith(_FAILED) and _ROOT in line
        return kept

    def _tell(self, text: str) -> None:
        """Tell the user something, as a line that the engine has printed."""
        self._control.write([write_event(Output(self._name, text)).rstrip()])

    @property
    def _control(self) -> FollowedNode:
        return next(iter(self._nodes.values()))

    def _end_all(self, why: str) -> None:
        """Note the end of all nodes that have not ended."""
        self._ended.set()
        for node in self._nodes.values():
            node.note_end(NodeEnded(node.node, None, why))

    def _stop(self) -> None:
        """Start to ask the nodes to stop and save, unless they have a signal already."""
        if self._has_signal:
            return

        def run() -> None:
            try:
                self._job.stop()
            except PlacerError as error:
                warning = NodeWarning(f"{self._job.title} cannot be stopped: {error}")
                self._control.write([write_event(warning).rstrip()])

        _start(run)

    def _cancel(self) -> None:
        """Start to cancel the job, once; it has `CANCEL_GRACE` to end."""
        if self._cancelled:
            return
        self._cancelled = True
        title, command = self._job.title, self._job.cancel_command
        hint = f"; end it by: {command}" if command else ""

        def run() -> None:
            try:
                self._job.cancel()
            except PlacerError as error:
                self._end_all(f"{title} may still run: {error}{hint}")
            if not self._ended.wait(CANCEL_GRACE):
                self._end_all(
                    f"{title} may still run: it has not ended within"
                    f" {CANCEL_GRACE:g} s{hint}"
                )

        _start(run)


def _is_root(end: NodeEnded) -> bool:
    """Whether the end of a node is a cause: it was lost, or killed by a signal that is no
    request to end."""
    killed = end.status is not None and end.status < 0
    return end.status is None or (killed and -end.status not in END_SIGNALS)


def _start(call: Callable[[], None]) -> None:
    threading.Thread(target=call, name="placer job", daemon=True).start()
