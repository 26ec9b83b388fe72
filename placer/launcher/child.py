"""A child process: its signals, its output and its exit status."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final, NamedTuple, Self

from placer.system.descriptors import is_readable

END_LIMIT: Final = 10.0
"""Seconds in which the system must end a killed process. A process that waits for a
disk or a network drive may never end."""
SILENT: Final = 1.0
"""Seconds without output after which the output of an ended process is complete."""


class Child:
    r"""A process that leads its own session and process group.

    Ctrl-C on the terminal does not reach the process. The system does not reuse its
    number until `wait` has returned its status. Before, `wait` kills the rest of the
    process group, so no signal reaches an unrelated process. The methods are thread-safe.
    A process from `start` is killed when its last reference is dropped, at the latest
    when this process ends, unless it was started with `left`.

    Args:
        pid: a fork of this process that will soon lead a session.

    Attributes:
        pidfd: a descriptor that becomes readable when the process has ended; -1 if the
            system does not support it.
        status: the exit status, -N after signal N; None until `wait` has returned it.
        lost: the reason, if the process ended because a process that it depends on ended;
            otherwise empty.
        stdin, stdout, stderr: this end of the pipes of the process; None without a pipe.

    Example:
        pipe = subprocess.PIPE
        with Child.start(["sh", "-c", "echo one; sleep 600"], stdout=pipe) as child:
            assert next(child.read(child.stdout)) == b"one\n"
            child.signal(signal.SIGTERM)
            assert child.end(grace=60.0) == -signal.SIGTERM  # else SIGKILL
    """

    def __init__(self, pid: int, *, started: subprocess.Popen[bytes] | None = None):
        self.pid = pid
        self.pidfd = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1
        self.status: int | None = None
        self.lost = ""
        self._started = started
        # Protects the status. It is reentrant, because a signal handler may run in the
        # thread that holds it.
        self._lock = threading.RLock()
        self.stdin, self.stdout, self.stderr = (
            (None, None, None)
            if started is None
            else (started.stdin, started.stdout, started.stderr)
        )

    @staticmethod
    def start(
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int | IO[bytes] = subprocess.DEVNULL,
        stderr: int | IO[bytes] = subprocess.DEVNULL,
        pass_fds: Sequence[int] = (),
        folder: str | Path | None = None,
        left: bool = False,
    ) -> Child:
        """Start a process.

        Args:
            command: the program and its arguments.
            environment: its environment variables. Default: those of this process.
            stdin, stdout, stderr: its standard files; `subprocess.PIPE` creates a pipe.
            pass_fds: more descriptors that the process inherits.
            folder: its working folder. Default: the folder of this process.
            left: if True, the process keeps running when this process ends.

        Raises:
            OSError: if the process cannot be started.
        """
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            cwd=folder,
            start_new_session=True,
        )
        try:
            child = Child(process.pid, started=process)
        except OSError:
            _kill_unheld(process)
            process.wait()
            raise
        if not left:
            # This also runs at the end of this process, which stops daemon threads
            # without cleanup.
            weakref.finalize(child, _kill_unheld, process)
        return child

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the process and close this end of its pipes."""
        self.end()
        self.close()

    def signal(self, number: int) -> None:
        """Send a signal to the process, unless it has ended."""
        with self._lock, suppress(ProcessLookupError):
            if self._has_number():
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process and its process group."""
        with self._lock:
            if not self._has_number():
                return
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                # The process does not lead a group yet, or it has ended.
                self.signal(signal.SIGKILL)

    def ends_within(self, seconds: float | None) -> bool:
        """Return True if the process ends within `seconds`; None waits without a limit."""
        with self._lock:
            if self.status is not None:
                return True
            # Another thread may close the descriptor.
            pidfd = os.dup(self.pidfd) if self.pidfd >= 0 else -1
        if pidfd >= 0:
            try:
                return is_readable(pidfd, seconds)
            finally:
                os.close(pidfd)
        # The group cannot be killed once the status is known.
        assert self._started is not None
        with suppress(subprocess.TimeoutExpired):
            self.status = self._started.wait(seconds)
        return self.status is not None

    def wait(self, seconds: float | None = None) -> int | None:
        """Wait for the end of the process and return its status. Then the rest of its
        process group is killed. Return None if the process has not ended within
        `seconds`; None waits without a limit."""
        if not self.ends_within(seconds):
            return None
        with self._lock:
            if self.status is None:
                self.kill()
                self.status = self._reap()
            return self.status

    def end(self, grace: float = 0.0) -> int | None:
        """Kill the process group, unless the process ends within `grace` seconds.
        Return the status, or None if the process has not ended within `END_LIMIT`."""
        if not self.ends_within(grace):
            self.kill()
        return self.wait(END_LIMIT)

    def read(self, pipe: IO[bytes] | None) -> Iterator[bytes]:
        """Yield the data from a pipe of the process until the pipe ends. Once the
        process has ended, stop as soon as the pipe is silent: a descendant in another
        session may keep the pipe open."""
        assert pipe is not None
        while True:
            has_ended = self.ends_within(0.0)
            if is_readable(pipe.fileno(), SILENT):
                if not (data := os.read(pipe.fileno(), 1 << 16)):
                    return
                yield data
            elif has_ended:
                return

    def is_frozen(self) -> bool:
        """Return True if a signal such as SIGSTOP has stopped the process."""
        try:
            status = Path(f"/proc/{self.pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False
        return status.rpartition(")")[2].split()[0] == "T"

    def close(self) -> None:
        """Close all descriptors of this object. Call it after the process has ended or
        is given up."""
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        with self._lock:
            if self.pidfd >= 0:
                os.close(self.pidfd)
            self.pidfd = -1

    def _has_number(self) -> bool:
        """Return True if the process still owns its number, even if it has ended."""
        return self.status is None

    def _reap(self) -> int:
        if self._started is not None:
            return self._started.wait()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Printed(NamedTuple):
    """The output of a command.

    Attributes:
        stdout: its standard output.
        stderr: its standard error.
        status: its exit status; None if it was killed after a timeout.
    """

    stdout: bytes
    stderr: bytes
    status: int | None


def run_command(
    command: Sequence[str],
    seconds: float,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Printed:
    r"""Run a command without input, and kill it after `seconds`.

    The command keeps running if this process ends.

    Raises:
        OSError: if the command cannot be started.

    Example:
        >>> run_command(["sh", "-c", "echo one; exit 3"], 60.0)
        Printed(stdout=b'one\n', stderr=b'', status=3)
    """
    with unnamed_file() as out, unnamed_file() as said:
        with Child.start(
            command, environment, stdout=out, stderr=said, folder=folder, left=True
        ) as child:
            status = child.wait(seconds)
        out.seek(0)
        said.seek(0)
        return Printed(out.read(), said.read(), status)


def unnamed_file() -> IO[bytes]:
    """Open a file without a name, in memory if the system supports it. Unlike with a
    pipe, a process that writes to the file does not wait for a reader."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("output"), "w+b")
    return TemporaryFile()


def _kill_unheld(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its group if it is a running child of this process."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
