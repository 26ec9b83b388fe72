"""Runs kubectl, the command line of Kubernetes."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from placer.errors import PlacerError

TIMEOUT: Final = 30.0
"""Seconds that the cluster has to answer a request."""
_NO_CLUSTER: Final = (
    "`kubectl cluster-info` must work; --option context=NAME names another cluster of"
    " your kubeconfig"
)
_HINTS: Final = {
    'no matches for kind "JobSet"': "this cluster has no JobSet: install it"
    " (https://jobset.sigs.k8s.io), or use --option crd=none",
    "AlreadyExists": "a run of this name is there: delete it, or name this one by"
    " --option name=NAME",
    "Forbidden": "`kubectl auth can-i --list` says what you may do there",
    "connection refused": _NO_CLUSTER,
    "was refused": _NO_CLUSTER,
    "Unable to connect": _NO_CLUSTER,
    "Unauthorized": _NO_CLUSTER,
}
"""What to do about an error, by what kubectl says."""

_LOGGED: Final = re.compile(r"^[EWI][0-9]{4} .*\n?", re.MULTILINE)
"""A line that kubectl logs for its developers, beside the error."""


class KubectlError(PlacerError):
    """A failure of kubectl; `printed` is what it had printed on standard output."""

    exit_status = 1

    def __init__(self, message: str, *, hint: str | None, printed: bytes = b"") -> None:
        super().__init__(message, hint=hint)
        self.printed = printed


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

    def run(self, *words: str, timeout: float = TIMEOUT) -> bytes:
        """Run kubectl, and return what it prints.

        Raises KubectlError if it is not there, has not ended after `timeout` seconds, or
        fails.
        """
        process = self.start(*words)
        try:
            printed, said = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            kill(process)
            printed, _ = process.communicate()
            raise KubectlError(
                f"the cluster has not answered `kubectl {words[0]}` for {timeout:g} s",
                hint=_NO_CLUSTER,
                printed=printed,
            ) from None
        if process.returncode:
            text = _LOGGED.sub("", said.decode(errors="replace")).strip()
            text = text or "it says no reason"
            hints = (hint for part, hint in _HINTS.items() if part in text)
            raise KubectlError(
                f"`kubectl {words[0]}` has failed: {text}",
                hint=next(hints, None),
                printed=printed,
            )
        return printed

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start kubectl, for reading its standard output and error. Ctrl-C does not end
        it. Raises KubectlError if it is not there."""
        line = self.words(*words)
        try:
            return subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise KubectlError(
                f"cannot run '{line[0]}': {error.strerror}",
                hint="install kubectl, or name it by --option kubectl=PATH",
            ) from None


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a kubectl that was started, and what it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
