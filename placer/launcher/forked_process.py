"""Starts the processes of nodes as forks of a server (`placer.launcher.fork_server`)."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping, Sequence
from typing import IO, Any, Final, Self

from placer.launcher.child import Child, unnamed_file
from placer.launcher.fork_messages import receive, send
from placer.runtime.process.interpreter import interpreter
from placer.runtime.signals.signals import how_ended, signals_blocked
from placer.system.blas import VARIABLE as BLAS_THREADS
from placer.system.descriptors import is_readable
from placer.system.files.last_line import last_line_of

MODULE: Final = "placer.launcher.fork_server"
ANSWER_TIMEOUT: Final = 10.0
"""Seconds in which the server must answer, once it has made its imports."""
FREEZE_CHECK: Final = 1.0
"""Seconds between two checks of a server that makes its imports."""
FREEZE_CHECKS: Final = 5
"""The number of consecutive checks that must find a server frozen before it is given up."""


class ForkError(Exception):
    """A process cannot be forked.

    Args:
        text: the state of the server, as a phrase after "the fork server".
        has_ended: True if the server has ended, and all of its forks with it.
    """

    def __init__(self, text: str, *, has_ended: bool = False) -> None:
        super().__init__(text)
        self.has_ended = has_ended


class ForkServer:
    """The launcher's end of a fork server.

    Args:
        environment: the environment of the nodes.
        imports: the modules that the server imports.
        room: the largest size of the command line of a node, in bytes.

    Raises:
        ForkError: if the server cannot be started.
    """

    def __init__(
        self, environment: Mapping[str, str], imports: Sequence[str], room: int
    ) -> None:
        self._connection, theirs = socket.socketpair()
        self._output = unnamed_file()
        # The last word reserves space for the command line of a fork.
        command = [*interpreter(MODULE), str(theirs.fileno()), ",".join(imports)]
        command.append("-" * room)
        try:
            with theirs, signals_blocked():
                self._process = Child.start(
                    command,
                    # A thread of OpenBLAS would be lost in a fork.
                    {**environment, BLAS_THREADS: "1"},
                    stdout=self._output,
                    stderr=self._output,
                    pass_fds=(theirs.fileno(),),
                )
        except OSError as error:
            self._connection.close()
            self._output.close()
            raise ForkError(f"cannot be started: {error}") from error

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """True if the server has ended. Its forks end soon after it."""
        return self._process.ends_within(0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the server and all of its forks."""
        self._connection.close()
        self._process.end()
        self._process.close()
        self._output.close()

    def wait_until_ready(self) -> None:
        """Wait until the server has made its imports. Raises ForkError if the server
        has ended, is frozen, or must not be forked."""
        frozen = 0
        while not is_readable(self._connection.fileno(), FREEZE_CHECK):
            frozen = frozen + 1 if self._process.is_frozen() else 0
            if frozen >= FREEZE_CHECKS:
                raise self._killed()
        answer = self._receive()
        self._connection.settimeout(ANSWER_TIMEOUT)
        if answer["refused"]:
            raise ForkError(answer["refused"])

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdout: IO[bytes],
        stderr: IO[bytes],
        pass_fds: Sequence[int] = (),
    ) -> ForkedProcess:
        """Start a process once the server is ready; see `Child.start` for the
        arguments. Raises ForkError if the server refuses or has ended."""
        with open(os.devnull, "rb") as stdin:
            standard = [each.fileno() for each in (stdin, stdout, stderr)]
            answer = self._ask(
                {
                    "command": [*command],
                    "environment": dict(environment),
                    "targets": [0, 1, 2, *pass_fds],
                },
                (*standard, *pass_fds),
            )
        if "refused" in answer:
            raise ForkError(answer["refused"])
        return ForkedProcess(answer["pid"], self)

    def wait(self, pid: int) -> int:
        """Return the exit status of an ended fork, as `Child.status`. Raises ForkError
        if the server has ended."""
        status: int = self._ask({"wait": pid})["status"]
        return status

    def _ask(
        self, message: Mapping[str, Any], descriptors: Sequence[int] = ()
    ) -> dict[str, Any]:
        try:
            send(self._connection, message, descriptors)
        except OSError:
            raise ForkError(self._end(), has_ended=True) from None
        return self._receive()

    def _receive(self) -> dict[str, Any]:
        try:
            return receive(self._connection)[0]
        except TimeoutError:
            raise self._killed() from None
        except (EOFError, OSError):
            raise ForkError(self._end(), has_ended=True) from None

    def _killed(self) -> ForkError:
        """Kill a server that does not answer, and return the reason."""
        why = f"has not answered within {ANSWER_TIMEOUT:g} s"
        if self._process.is_frozen():
            why = "is frozen: a signal has stopped it"
        self._process.end()
        return ForkError(why, has_ended=True)

    def _end(self) -> str:
        status = self._process.wait(ANSWER_TIMEOUT)
        if status is None:
            return "no longer answers"
        if status < 0:
            return how_ended(status)
        last = last_line_of(os.pread(self._output.fileno(), 1 << 16, 0))
        return how_ended(status) + (f": {last}" if last else "")


class ForkedProcess(Child):
    """A process that a fork server started. If the server ended before the process,
    `lost` says how."""

    def __init__(self, pid: int, server: ForkServer) -> None:
        super().__init__(pid)
        self.server = server

    def _has_number(self) -> bool:
        # Once the server has ended, the system may reuse the number.
        return super()._has_number() and not self.server.has_ended

    def _reap(self) -> int:
        try:
            return self.server.wait(self.pid)
        except ForkError as error:
            self.lost = str(error)
            return -signal.SIGKILL
