"""Starts, watches and ends the process of one node."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from placer.errors import RunError
from placer.launcher.child import Child
from placer.launcher.forked_process import ForkServer
from placer.launcher.watched_node import WatchedNode
from placer.runtime.callbacks.event_queue import write_all
from placer.runtime.control.launcher_orders import STEP_CALLED, STOP_ORDER
from placer.runtime.signals.signals import signals_blocked, status_of_shell
from placer.system.owned_threads import END_LIMIT, OwnedThreads

SSH_FAILED = 255
"""The exit status of an ssh that could not connect or lost its connection."""


@dataclass(slots=True, kw_only=True)
class NodeProcess(WatchedNode):
    """The process of a node, or an ssh process that runs the node on another machine.

    Attributes:
        process: the process.
        order_fd: the launcher's end of the pipe from which the control node reads orders;
            None for the other nodes of this machine.
        threads: threads that write to the process; they end with it.
    """

    process: Child
    order_fd: int | None
    threads: OwnedThreads = field(default_factory=OwnedThreads)
    _early: list[bytes] | None = None
    """Orders that wait for the end of a delivery; None without a delivery, or after it."""
    _order_lock: threading.Lock = field(default_factory=threading.Lock)

    def expect_delivery(self) -> None:
        """Let all orders wait for a delivery."""
        self._early = []

    def deliver(self, content: bytes) -> None:
        """Write a delivery before all orders. It is written in a thread, because ssh reads
        only after it has connected."""
        assert self.order_fd is not None
        send = partial(self._send_delivery, content, os.dup(self.order_fd))
        self.threads.begin(send, "placer delivery")

    def _send_delivery(self, content: bytes, fd: int) -> None:
        # If ssh has ended, its exit status and log give the reason.
        with contextlib.suppress(BrokenPipeError), open(fd, "wb", buffering=0):
            write_all(fd, content)
            with self._order_lock:
                for order in self._early or ():
                    write_all(fd, order)
                self._early = None

    def kill(self) -> None:
        """Kill the process and all processes that it started."""
        if self.running:
            self.process.kill()

    def order_stop(self) -> None:
        """Ask the control node to stop the run after a step."""
        self.order(STOP_ORDER)

    def order_step(self) -> bool:
        self.order(STEP_CALLED)
        return True

    def order(self, order: bytes) -> None:
        """Write an order to the pipe of the process."""
        assert self.order_fd is not None
        with contextlib.suppress(BrokenPipeError), self._order_lock:
            if self._early is not None:
                self._early.append(order)
                return
            # A process that has ended is reported by pidfd.
            os.write(self.order_fd, order)

    def abandon(self) -> None:
        """Do nothing: a killed process of this machine ends at once."""

    def is_stopped(self) -> bool:
        """Return True if a signal such as SIGSTOP has frozen the process."""
        return self.running and self.process.is_frozen()

    def reap(self) -> None:
        """Kill the process and its process group, and store its exit status."""
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
    again: bool = False,
) -> NodeProcess:
    """Start the process of a node on this machine.

    The signals that end a run stay blocked in the process until it can report them.

    Args:
        node: the name of the node.
        command: its command line. `--report-fd N` is appended: the descriptor for events.
        log: the file for its output.
        environment: its environment variables.
        takes_orders: append `--order-fd N`: a descriptor that becomes readable when the
            node should stop the run.
        inherited: more descriptors that the process inherits.
        server: fork the process from this server.
        again: whether the process takes the place of another one. Its log is extended.

    Raises:
        RunError: if the process cannot be started.
        ForkError: if the server cannot start the process.
    """
    with _pipes(node, orders=takes_orders) as (reports, order, theirs):
        options = ["--report-fd", str(theirs[0])]
        if takes_orders:
            options += ["--order-fd", str(theirs[1])]
        with log.open("ab" if again else "wb") as output, signals_blocked():
            process = (Child if server is None else server).start(
                [*command, *options],
                environment,
                stdout=output,
                stderr=output,
                pass_fds=(*theirs, *inherited),
            )
            return _watched(node, log, process, reports, order)


def start_ssh(
    node: str, command: Sequence[str], log: Path, host: str, *, again: bool = False
) -> NodeProcess:
    """Start an ssh process that runs a node on another machine. The node reads orders
    from the standard input of ssh and writes events to its standard output. The
    standard error of ssh goes to `log`, which is extended if the process takes the place of
    another one. Raises RunError if ssh cannot be started."""
    with (
        _pipes(node, orders=True) as (reports, order, (end, read)),
        log.open("ab" if again else "wb") as output,
    ):
        if again:
            output.write(f"{node} starts again on {host}\n".encode())
            output.flush()
        process = Child.start(command, stdin=read, stdout=end, stderr=output)
        child = _watched(node, log, process, reports, order)
    child.host, child.by_ssh = host, True
    child.expect_delivery()
    return child


@contextmanager
def _pipes(
    node: str, *, orders: bool
) -> Iterator[tuple[int, int | None, tuple[int, ...]]]:
    """Yield the launcher's ends of the pipes for events and orders, then the other ends."""
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
