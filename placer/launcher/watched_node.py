"""A node that the launcher watches: a process, or a node of an engine's job."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(slots=True, kw_only=True)
class WatchedNode(ABC):
    """A node as the launcher sees and controls it.

    Attributes:
        node: its name.
        log: its log file.
        report_fd: the launcher's end of the pipe for the events of the node.
        pidfd: a descriptor that becomes readable when the node has ended.
        job: the engine's job of the node, which may take long to end; "" for a process.
        pending: the incomplete last line of the events read so far.
        reports_ended: True if the other end of the event pipe is closed.
        has_spoken: whether the node has written an event to the pipe.
        running: True until the launcher knows that the node has ended.
        exit_status: -N after signal N; None while the node runs, or if unknown.
        host: the machine of the node, if it is another one.
        by_ssh: True if ssh runs the node; `exit_status` is then the status of ssh.
        why: the reason that an engine gives for the end of the node.
        job_failure: the error that ended the whole job.
        lost: how the fork server ended, if the node ended together with it.
    """

    node: str
    log: Path
    report_fd: int
    pidfd: int
    job: str = ""
    pending: bytes = b""
    reports_ended: bool = False
    has_spoken: bool = False
    running: bool = True
    exit_status: int | None = None
    host: str = ""
    by_ssh: bool = False
    why: str = ""
    job_failure: str = ""
    lost: str = ""

    def read_lines(self) -> tuple[list[bytes], bool]:
        """Read once; return the complete lines, and whether more data may follow."""
        if self.reports_ended:
            return [], False
        try:
            data = os.read(self.report_fd, 1 << 16)
        except BlockingIOError:
            return [], False
        self.reports_ended = not data
        *lines, self.pending = (self.pending + data).split(b"\n")
        self.has_spoken |= bool(lines)
        return lines, bool(data)

    @abstractmethod
    def kill(self) -> None:
        """End the node and all processes that it started."""

    @abstractmethod
    def order_stop(self) -> None:
        """Ask the control node to stop the run after a step."""

    @abstractmethod
    def order_step(self) -> bool:
        """Tell the control node that the callbacks have received a step. Return False
        if the nodes do not wait for callbacks."""

    def order(self, order: bytes) -> None:
        """Write an order to the pipe of the node, if it has one."""
        raise NotImplementedError

    @abstractmethod
    def abandon(self) -> None:
        """Stop waiting for the end of a killed node, if an engine ends it."""

    def is_stopped(self) -> bool:
        """Return True if the process is known to be frozen, for example by SIGSTOP."""
        return False

    @abstractmethod
    def reap(self) -> None:
        """Record how the node ended, once `pidfd` is readable."""

    @abstractmethod
    def close(self) -> None:
        """Close the descriptors, and end the node if it runs."""


class StartNode(Protocol):
    """Starts the process of a node."""

    def __call__(
        self, node: str, log: Path, is_control: bool, *, attempt: int | None = None
    ) -> WatchedNode:
        """Start a process.

        Args:
            node: the name of the node.
            log: its log file.
            is_control: whether it is the control node.
            attempt: the attempt of a process that takes the place of another one, or 0 if
                the run has not trained; its log is extended. None for the first process.
        """
