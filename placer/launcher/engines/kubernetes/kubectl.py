"""Runs kubectl, the command line of Kubernetes."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Final

from placer.errors import PlacerError
from placer.launcher.child import Child, run_command
from placer.launcher.engines.hints import hint_of
from placer.launcher.engines.said import in_one_line, quoting

TIMEOUT: Final = 30.0
"""Seconds that the cluster has to answer a request."""
FORBIDDEN: Final = "Forbidden"
"""What errors have about something that the user may not do."""
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
        line = self.words(*words)
        with _found(line):
            done = run_command(line, timeout)
        if done.status is None:
            raise KubectlError(
                f"the cluster has not answered `kubectl {words[0]}` for {timeout:g} s",
                hint="`kubectl cluster-info` must work; --option context=NAME names another"
                " cluster of your kubeconfig",
                printed=done.stdout,
                has_timed_out=True,
            )
        if done.status:
            text = done.stderr.decode(errors="replace")
            raise KubectlError(
                quoting(f"`kubectl {words[0]}` has failed", text),
                hint=hint_of("kubectl", text),
                printed=done.stdout,
                is_forbidden=FORBIDDEN in text,
            )
        return done.stdout

    def start(self, *words: str, stderr: IO[bytes]) -> Child:
        """Start kubectl, for reading its standard output. Ctrl-C does not end it. Raises
        KubectlError if it is not there."""
        line = self.words(*words)
        with _found(line):
            return Child.start(line, stdout=subprocess.PIPE, stderr=stderr)


@contextmanager
def _found(line: Sequence[str]) -> Iterator[None]:
    """Raise KubectlError for a command that cannot be started within the context."""
    try:
        yield
    except OSError as error:
        raise KubectlError(
            f"cannot run '{line[0]}': {error.strerror}",
            hint="install kubectl, or name it by --option kubectl=PATH",
        ) from None


def read_error(file: IO[bytes]) -> str:
    """Return the error that kubectl has written to a file."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - _READ))
    return in_one_line(file.read()) or "it says no reason"
