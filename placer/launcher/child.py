"""A process that this one has started: its end, its exit status, what it writes."""

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
"""Seconds in which the system ends a process that was killed; one that waits for a disk or
a network drive may take for ever."""
SILENT: Final = 1.0
"""Seconds without output after which a process that has ended writes no more."""


class Child:
    """A process that leads a group and a session of its own, with all that it starts.

    Ctrl-C on the terminal does not reach it. The system does not use its number again
    until `wait` has its status, and `wait` kills what is left of its group first, so no
    signal reaches another process. Several threads may call its methods. A process from
    `start` is killed when its last reference is dropped, at the latest when this process
    ends, unless it is `left` to end by itself.

    Args:
        pid: a fork of this process, which leads a session soon.

    Attributes:
        pidfd: a descriptor that becomes readable when the process has ended; -1 where the
            system has none.
        status: the exit status, -N after signal N; None until `wait` has returned it.
        lost: why it has ended with another process that it depends on; else empty.
        stdin, stdout, stderr: this end of its pipes, None for what is not a pipe.

    Example:
        pipe = subprocess.PIPE
        with Child.start(["sh", "-c", "echo one; sleep 600"], stdout=pipe) as child:
            assert next(child.read(child.stdout)) == b"one\\n"
            child.signal(signal.SIGTERM)
            assert child.end(grace=60.0) == -signal.SIGTERM  # else SIGKILL
    """

    def __init__(self, pid: int, *, started: subprocess.Popen[bytes] | None = None):
        self.pid = pid
        self.pidfd = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1
        self.status: int | None = None
        self.lost = ""
        self._started = started
        # Of the status. A signal handler may take it in the thread that has it.
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
        """Start a process with these files; `subprocess.PIPE` stands for a new pipe.

        Args:
            command: the program and its arguments.
            environment: by default that of this process.
            pass_fds: further descriptors that the process inherits.
            folder: its working folder, by default that of this process.
            left: whether it is not killed at the end of this process.

        Raises OSError if it cannot be started.
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
            # Also at the end of this process, which stops daemon threads without cleanup.
            weakref.finalize(child, _kill_unheld, process)
        return child

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the process, and close this end of its pipes."""
        self.end()
        self.close()

    def signal(self, number: int) -> None:
        """Send a signal to the process, unless it has ended."""
        with self._lock, suppress(ProcessLookupError):
            if self._has_number():
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process and all that it started."""
        with self._lock:
            if not self._has_number():
                return
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:  # it does not lead a group yet, or has ended
                self.signal(signal.SIGKILL)

    def ends_within(self, seconds: float | None) -> bool:
        """Wait for the end of the process, for at most `seconds` if that is not None;
        return whether it has ended."""
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
        # Its group cannot be killed afterwards.
        assert self._started is not None
        with suppress(subprocess.TimeoutExpired):
            self.status = self._started.wait(seconds)
        return self.status is not None

    def wait(self, seconds: float | None = None) -> int | None:
        """Wait for the end of the process, for at most `seconds` if that is not None;
        kill what is left of its group, and return the status, None if it has not ended."""
        if not self.ends_within(seconds):
            return None
        with self._lock:
            if self.status is None:
                self.kill()
                self.status = self._reap()
            return self.status

    def end(self, grace: float = 0.0) -> int | None:
        """Kill the process and all that it started unless it ends within `grace` seconds;
        return its status, None if the system cannot end it within `END_LIMIT`."""
        if not self.ends_within(grace):
            self.kill()
        return self.wait(END_LIMIT)

    def read(self, pipe: IO[bytes] | None) -> Iterator[bytes]:
        """Yield what comes through one of its pipes, until its end; or, once the process
        has ended, until the pipe is silent: what it has started may have the pipe, in
        another session."""
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
        """Whether a signal such as SIGSTOP has stopped the process."""
        try:
            status = Path(f"/proc/{self.pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False
        return status.rpartition(")")[2].split()[0] == "T"

    def close(self) -> None:
        """Close all descriptors of this object; the process has ended, or is given up."""
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        with self._lock:
            if self.pidfd >= 0:
                os.close(self.pidfd)
            self.pidfd = -1

    def _has_number(self) -> bool:
        """Whether the number is that of the process, which may have ended."""
        return self.status is None

    def _reap(self) -> int:
        """Return the status of the process, which has ended, and free its number."""
        if self._started is not None:
            return self._started.wait()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Printed(NamedTuple):
    """What a command has printed; `status` is its exit status, None if it was killed,
    since it had not ended in time."""

    stdout: bytes
    stderr: bytes
    status: int | None


def run_command(
    command: Sequence[str],
    seconds: float,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Printed:
    """Run a command with no input for at most `seconds`; it goes on if this process ends.
    Raises OSError if it cannot be started.

    >>> run_command(["sh", "-c", "echo one; exit 3"], 60.0)
    Printed(stdout=b'one\\n', stderr=b'', status=3)
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
    """Open a file without a name, in memory if the system can do that: a process that
    writes to it does not wait for a reader."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("output"), "w+b")
    return TemporaryFile()


def _kill_unheld(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its group if it runs, and is a child of this process."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
