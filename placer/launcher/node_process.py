"""One node's process as its launcher sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from placer.errors import RunError


@dataclass(slots=True)
class Child:
    """A node's process. `reports` is our end of its pipe, `deaf` once that has ended;
    `orders` is our end of the one that the control node reads, None for others; `pidfd`
    is readable once the process has ended.

    `status` is its exit status, -N after signal N, None while it runs.
    """

    node: str
    log: Path
    process: subprocess.Popen[bytes]
    reports: int
    orders: int | None
    pidfd: int
    pending: bytes = b""
    deaf: bool = False
    status: int | None = None

    @property
    def running(self) -> bool:
        return self.status is None

    def read(self) -> tuple[list[bytes], bool]:
        """The whole lines that one read gives, and whether there may be more."""
        if self.deaf:
            return [], False
        try:
            data = os.read(self.reports, 1 << 16)
        except BlockingIOError:
            return [], False
        self.deaf = not data
        *lines, self.pending = (self.pending + data).split(b"\n")
        return lines, bool(data)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and all that it started."""
        if self.running:
            _signal_group(self.process.pid, number)

    def order_stop(self) -> None:
        """Ask the node, the control node, to stop the run after a step."""
        assert self.orders is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which is seen anyway
            os.write(self.orders, b"\n")

    def is_stopped(self) -> bool:
        """Whether the process is frozen, as by SIGSTOP."""
        if not self.running:
            return False
        how = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
        change = os.waitid(os.P_PID, self.process.pid, how)
        return change is not None and change.si_code == os.CLD_STOPPED

    def reap(self) -> None:
        """End the process and all that it started, and take note of its status."""
        # Before the process is waited for: until then its id, which is its group's
        # too, is given to nobody else.
        _signal_group(self.process.pid, signal.SIGKILL)
        self.status = self.process.wait()

    def close(self) -> None:
        for fd in (self.reports, self.orders, self.pidfd):
            if fd is not None:
                os.close(fd)


def start(
    node: str,
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    *,
    orders: bool,
) -> Child:
    """Start a node's process, its output in `log`.

    `command` gets `--report-fd N` appended, the descriptor to write events to, and with
    `orders` also `--order-fd N`, from which the node reads when it is to stop the run.
    The process is the leader of a session of its own, so that Ctrl-C on the terminal
    reaches the launcher only. Raises RunError when it cannot be started.
    """
    ours: list[int] = []
    theirs: list[int] = []
    try:
        reports, end = os.pipe()
        ours, theirs = [reports], [end]
        options = ["--report-fd", str(end)]
        order = None
        if orders:
            read, order = os.pipe()
            ours.append(order)
            theirs.append(read)
            options += ["--order-fd", str(read)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                pass_fds=theirs,
                start_new_session=True,
            )
        try:
            pidfd = os.pidfd_open(process.pid)
        except OSError:
            _signal_group(process.pid, signal.SIGKILL)
            process.wait()
            raise
    except OSError as error:
        for fd in ours:
            os.close(fd)
        raise RunError(f"{node} cannot be started: {error}") from error
    finally:
        for fd in theirs:
            os.close(fd)
    os.set_blocking(reports, False)
    return Child(node, log, process, reports, order, pidfd)


def _signal_group(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # nothing of it is left
        os.killpg(leader, number)
