"""A node that the launcher watches: a process, or a node of a job of an engine."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True, kw_only=True)
class WatchedNode(ABC):
    """What the launcher knows of a node, and what it can do to it.

    Attributes:
        node: its name.
        log: the file of its log.
        report_fd: the launcher's end of the pipe that the events of the node come by.
        pidfd: a descriptor that becomes readable when the node has ended.
        job: the job of an engine that it belongs to, which may take long to end.
        pending: the incomplete last line of the events read so far.
        reports_ended: whether the other end of the event pipe is closed.
        running: whether it has not ended, as far as the launcher knows.
        exit_status: -N after signal N; None while it runs, or if it is not known.
        host: the machine of the node if it is another one.
        by_ssh: whether it was started by ssh, whose status it then has.
        why: what an engine says about its end.
        job_failure: the error with which all of its job has ended.
        lost: how its fork server has ended, if the node has ended with that.
    """

    node: str
    log: Path
    report_fd: int
    pidfd: int
    job: str = ""
    pending: bytes = b""
    reports_ended: bool = False
    running: bool = True
    exit_status: int | None = None
    host: str = ""
    by_ssh: bool = False
    why: str = ""
    job_failure: str = ""
    lost: str = ""

    def read_lines(self) -> tuple[list[bytes], bool]:
        """Read once; return the complete lines, and whether there may be more."""
        if self.reports_ended:
            return [], False
        try:
            data = os.read(self.report_fd, 1 << 16)
        except BlockingIOError:
            return [], False
        self.reports_ended = not data
        *lines, self.pending = (self.pending + data).split(b"\n")
        return lines, bool(data)

    @abstractmethod
    def kill(self) -> None:
        """End the node and all that it has started."""

    @abstractmethod
    def order_stop(self) -> None:
        """Ask the control node to stop the run after a step."""

    @abstractmethod
    def order_step(self) -> bool:
        """Tell the control node that the callbacks have had a step; return False if nodes
        do not wait for callbacks."""

    @abstractmethod
    def abandon(self) -> None:
        """Wait no more for the end of a node that was killed, if an engine ends it."""

    def is_stopped(self) -> bool:
        """Whether the process is known to be frozen, as by SIGSTOP."""
        return False

    @abstractmethod
    def reap(self) -> None:
        """Note how the node has ended; `pidfd` is readable."""

    @abstractmethod
    def close(self) -> None:
        """Close the descriptors, and end the node if it runs."""
