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
"""Seconds in which the cluster must answer a request."""
FORBIDDEN: Final = "Forbidden"
"""Part of the error for an action that the user may not do."""
_READ: Final = 8192
"""The number of bytes to read at the end of an error."""


class KubectlError(PlacerError):
    """A failure of kubectl.

    Attributes:
        printed: the output of kubectl before the failure.
        has_timed_out: True if kubectl did not end in time; its action may still have
            succeeded.
        is_forbidden: True if the cluster denies the action to the user.
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
    """Raise PlacerError if the text is not a valid command line."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise PlacerError(
            f"kubectl: '{command}' is not a command: {str(error).lower()}"
        ) from None
    if not words:
        raise PlacerError("kubectl: the command is empty")


@dataclass(frozen=True, slots=True)
class Kubectl:
    """Runs kubectl for one cluster.

    Attributes:
        command: such as `kubectl` or `microk8s kubectl`.
        context: the context in the user's kubeconfig; None for the current one.
        namespace: the namespace; None for the namespace of the context.
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
        """Run kubectl and return its output. Raises KubectlError if kubectl is missing,
        fails, or does not end within `timeout` seconds (default `TIMEOUT`)."""
        if timeout is None:
            timeout = TIMEOUT
        line = self.words(*words)
        with _found(line):
            done = run_command(line, timeout)
        if done.status is None:
            raise KubectlError(
                f"the cluster has not answered `kubectl {words[0]}` for {timeout:g} s",
                hint="check that `kubectl cluster-info` works, or choose another "
                "cluster of your kubeconfig with --option context=NAME",
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
        """Start kubectl, for reading its standard output. Ctrl-C does not end it.
        Raises KubectlError if kubectl is missing."""
        line = self.words(*words)
        with _found(line):
            return Child.start(line, stdout=subprocess.PIPE, stderr=stderr)


@contextmanager
def _found(line: Sequence[str]) -> Iterator[None]:
    """Raise KubectlError if the command cannot be started in the context."""
    try:
        yield
    except OSError as error:
        raise KubectlError(
            f"cannot run '{line[0]}': {error.strerror}",
            hint="install kubectl, or give its path with --option kubectl=PATH",
        ) from None


def read_error(file: IO[bytes]) -> str:
    """Return the error that kubectl has written to a file."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - _READ))
    return in_one_line(file.read()) or "no reason was given"
