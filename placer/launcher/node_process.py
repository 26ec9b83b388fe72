"""The process of one node: start it, read its events, give it orders, end it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from placer.errors import RunError
from placer.launcher.child import Child
from placer.launcher.forked_process import ForkServer
from placer.launcher.watched_node import WatchedNode
from placer.runtime.control.launcher_orders import STEP_CALLED, STOP_ORDER
from placer.runtime.signals.signals import signals_blocked, status_of_shell
from placer.system.owned_threads import END_LIMIT, OwnedThreads

SSH_FAILED = 255
"""The status of an ssh that could not connect, or has lost its connection."""


@dataclass(slots=True, kw_only=True)
class NodeProcess(WatchedNode):
    """The process of a node, which may be ssh.

    Attributes:
        process: the process.
        order_fd: the launcher's end of the pipe that the control node reads orders
            from, None for the other nodes of this machine.
        threads: those that write to the process; they end with it.
    """

    process: Child
    order_fd: int | None
    threads: OwnedThreads = field(default_factory=OwnedThreads)

    def kill(self) -> None:
        """Kill the process and all processes that it started."""
        if self.running:
            self.process.kill()

    def order_stop(self) -> None:
        """Ask the control node to stop the run after a step."""
        self._order(STOP_ORDER)

    def order_step(self) -> bool:
        self._order(STEP_CALLED)
        return True

    def _order(self, order: bytes) -> None:
        assert self.order_fd is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; pidfd reports that
            os.write(self.order_fd, order)

    def abandon(self) -> None:
        """Do nothing: a process of this machine that was killed ends at once."""

    def is_stopped(self) -> bool:
        """Whether the process is frozen, as by SIGSTOP."""
        return self.running and self.process.is_frozen()

    def reap(self) -> None:
        """Kill the process and all that it started, and store its exit status."""
        status = self.process.wait()
        assert status is not None
        self.lost = self.process.lost
        self.exit_status = status_of_shell(status) if self.by_ssh else status
        self.running = False

    def close(self) -> None:
        """Close the descriptors, and end the process if it runs."""
        if self.running and self.process.end() is not None:
            self.reap()
        for fd in (self.report_fd, self.order_fd):
            if fd is not None:
                os.close(fd)
        self.process.close()
        if self.threads.join(END_LIMIT):
            self.threads.check()


def start_node(
    node: str,
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    *,
    takes_orders: bool,
    inherited: Sequence[int] = (),
    server: ForkServer | None = None,
) -> NodeProcess:
    """Start the process of a node on this machine, with its output in `log`.

    `--report-fd N` is appended to `command`: the descriptor to write events to. With
    `takes_orders`, so is `--order-fd N`: the descriptor that becomes readable when the
    node should stop the run. The process also has the descriptors `inherited`. The
    signals that end a run are blocked in it until it can report them. With `server` it is
    a fork of that. Raises RunError if it cannot be started, ForkError if the server cannot
    start it.
    """
    with _pipes(node, orders=takes_orders) as (reports, order, theirs):
        options = ["--report-fd", str(theirs[0])]
        if takes_orders:
            options += ["--order-fd", str(theirs[1])]
        with log.open("wb") as output, signals_blocked():
            process = (Child if server is None else server).start(
                [*command, *options],
                environment,
                stdout=output,
                stderr=output,
                pass_fds=(*theirs, *inherited),
            )
            return _watched(node, log, process, reports, order)


def start_ssh(node: str, command: Sequence[str], log: Path, host: str) -> NodeProcess:
    """Start an ssh that runs a node on another machine, with its standard error in `log`.

    It reads from the pipe for orders, and writes events to the other one. Raises
    RunError if it cannot be started.
    """
    with (
        _pipes(node, orders=True) as (reports, order, (end, read)),
        log.open("wb") as output,
    ):
        process = Child.start(command, stdin=read, stdout=end, stderr=output)
        child = _watched(node, log, process, reports, order)
    child.host, child.by_ssh = host, True
    return child


@contextmanager
def _pipes(
    node: str, *, orders: bool
) -> Iterator[tuple[int, int | None, tuple[int, ...]]]:
    """Yield the launcher's ends of the pipes for events and for orders, and the other
    ends, which are closed afterwards; after an error all are.

    Raises RunError for an OSError: the node cannot be started.
    """
    ours: list[int] = []
    theirs: list[int] = []
    try:
        reports, end = os.pipe()
        ours, theirs = [reports], [end]
        order = None
        if orders:
            read, order = os.pipe()
            ours.append(order)
            theirs.append(read)
        os.set_blocking(reports, False)
        yield reports, order, tuple(theirs)
    except BaseException as error:
        for fd in ours:
            os.close(fd)
        if isinstance(error, OSError):
            raise RunError(f"{node} cannot be started: {error}") from error
        raise
    finally:
        for fd in theirs:
            os.close(fd)


def _watched(
    node: str, log: Path, process: Child, reports: int, order: int | None
) -> NodeProcess:
    return NodeProcess(
        node=node,
        log=log,
        process=process,
        report_fd=reports,
        order_fd=order,
        pidfd=process.pidfd,
    )
