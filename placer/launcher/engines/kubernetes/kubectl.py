"""Runs kubectl, the command line of Kubernetes."""

from __future__ import annotations

import atexit
import os
import shlex
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Final
from weakref import WeakSet

from placer.errors import PlacerError
from placer.launcher.engines.hints import hint_of
from placer.launcher.engines.said import in_one_line, quoting

TIMEOUT: Final = 30.0
"""Seconds that the cluster has to answer a request."""
FORBIDDEN: Final = "Forbidden"
"""What errors have about something that the user may not do."""
_CLOSED: Final = 1.0
"""Seconds within which the output of a process that was killed is closed."""
_READ: Final = 8192
"""Bytes at the end of an error that are read."""


class KubectlError(PlacerError):
    """A failure of kubectl.

    Attributes:
        printed: what it had printed on standard output.
        has_timed_out: whether it had not ended: it may have done what it should.
        is_forbidden: whether the cluster refuses what it was asked.
    """

    exit_status = 1

    def __init__(
        self,
        message: str,
        *,
        hint: str | None,
        printed: bytes = b"",
        has_timed_out: bool = False,
        is_forbidden: bool = False,
    ) -> None:
        super().__init__(message, hint=hint)
        self.printed, self.has_timed_out = printed, has_timed_out
        self.is_forbidden = is_forbidden


_STARTED: Final[WeakSet[subprocess.Popen[bytes]]] = WeakSet()
"""What was started, and may still run."""


@atexit.register
def _end_all() -> None:
    """End with this process what its threads have started: daemon threads are stopped
    without cleanup."""
    for process in [*_STARTED]:
        if process.poll() is None:
            kill(process)


def check_command(command: str) -> None:
    """Raise PlacerError for a command of kubectl that is no command line."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise PlacerError(
            f"kubectl: '{command}' is no command: {str(error).lower()}"
        ) from None
    if not words:
        raise PlacerError("kubectl: the command is empty")


@dataclass(frozen=True, slots=True)
class Kubectl:
    """How to run kubectl.

    Attributes:
        command: such as `kubectl` or `microk8s kubectl`.
        context: the context in the user's kubeconfig; None for the current one.
        namespace: None for that of the context.
    """

    command: str
    context: str | None
    namespace: str | None

    def words(self, *words: str) -> list[str]:
        """Return the command line for the words after `kubectl`."""
        line = shlex.split(self.command)
        if self.context is not None:
            line += ["--context", self.context]
        if self.namespace is not None:
            line += ["--namespace", self.namespace]
        return [*line, *words]

    def run(self, *words: str, timeout: float | None = None) -> bytes:
        """Run kubectl, and return what it prints.

        Raises KubectlError if it is not there, has not ended after `timeout` seconds, by
        default `TIMEOUT`, or fails.
        """
        if timeout is None:
            timeout = TIMEOUT
        process = self.start(*words)
        try:
            printed, said = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            kill(process)
            raise KubectlError(
                f"the cluster has not answered `kubectl {words[0]}` for {timeout:g} s",
                hint="`kubectl cluster-info` must work; --option context=NAME names another"
                " cluster of your kubeconfig",
                printed=_rest(process),
                has_timed_out=True,
            ) from None
        if process.returncode:
            text = said.decode(errors="replace")
            raise KubectlError(
                quoting(f"`kubectl {words[0]}` has failed", text),
                hint=hint_of("kubectl", text),
                printed=printed,
                is_forbidden=FORBIDDEN in text,
            )
        return printed

    def start(
        self, *words: str, stderr: int | IO[bytes] = subprocess.PIPE
    ) -> subprocess.Popen[bytes]:
        """Start kubectl, for reading its standard output and error. Ctrl-C does not end
        it. Raises KubectlError if it is not there."""
        line = self.words(*words)
        try:
            process = subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        except OSError as error:
            raise KubectlError(
                f"cannot run '{line[0]}': {error.strerror}",
                hint="install kubectl, or name it by --option kubectl=PATH",
            ) from None
        _STARTED.add(process)
        return process


def read_error(file: IO[bytes]) -> str:
    """Return the error that kubectl has written to a file."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - _READ))
    return in_one_line(file.read()) or "it says no reason"


def _rest(process: subprocess.Popen[bytes]) -> bytes:
    """Return what a process that was killed had printed."""
    try:
        return process.communicate(timeout=_CLOSED)[0]
    except subprocess.TimeoutExpired as error:  # what it has started has its output
        process.wait()
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()
        return error.stdout or b""


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a kubectl that was started, and what it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
