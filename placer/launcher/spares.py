"""Checks at the start of a run that its nodes could move to each spare machine.

The checks run while the nodes start, and the control node waits for them. The launcher runs
`placer run - --check` on each spare machine, and on the machine of the control node to compare
versions. The command receives the build, checks that the rows of all nodes fit, and prints its
versions.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Final

from placer.errors import PlacerError, RunError
from placer.launcher.child import Child, unnamed_file
from placer.launcher.delivery import read_delivery, unpack
from placer.launcher.node_process import SSH_FAILED
from placer.runtime.callbacks.event_queue import write_all
from placer.runtime.control.versions import check_versions, own_versions
from placer.runtime.process.interpreter import NODE_VARIABLES, interpreter
from placer.system.files.last_line import last_line_of
from placer.system.files.nearest_path import path_hint
from placer.system.owned_threads import END_LIMIT, OwnedThreads

CHECK: Final = "--check"


def run_words(python: str | None) -> list[str]:
    """Return the words of the command that receives a build on another machine."""
    variables = [f"{name}={value}" for name, value in NODE_VARIABLES.items()]
    return ["env", *variables, *interpreter(python=python), "run", "-"]


def check_command(python: str | None, data: Path | None) -> str:
    """Return the shell command that checks a machine."""
    words = [*run_words(python), "--node", "auto", CHECK]
    words += [] if data is None else ["--data", str(data)]
    return f"exec {shlex.join(words)}"


def check_machine(data: Path | None) -> str:
    """Check that all nodes of the build on standard input can run on this machine.

    Args:
        data: the folder of the data, if it is not that of the spec.

    Returns:
        The versions on this machine, as JSON.

    Raises:
        PlacerError: if the build cannot be received, or rows do not fit it.
    """
    from placer.launcher.data_check import check_build_data
    from placer.plan.plan import read_plan

    build = unpack(read_delivery(0))
    plan = read_plan(build)
    reads_rows = any(node.reads_rows for node in plan.nodes)
    if data is not None and not data.is_dir() and reads_rows:
        raise PlacerError(
            f"the folder '{data}' of --data does not exist",
            hint=path_hint(data, Path.is_dir),
        )
    check_build_data(plan, build)
    return json.dumps(own_versions())


@dataclass
class SpareChecks:
    """The checks of the spare machines, which run while the nodes start.

    Args:
        ssh: the ssh command.
        command: the command that checks a machine.
        delivery: the build, for its standard input.
        control: the machine of the control node, whose versions the spares must have.
        spares: the spare machines.
        limit: the seconds in which a check must end.
    """

    ssh: Sequence[str]
    command: str
    delivery: bytes
    control: str
    spares: Sequence[str]
    limit: float = 300.0
    _running: dict[str, _Check] = field(default_factory=dict)
    _versions: dict[str, dict[str, str]] = field(default_factory=dict)
    _unknown: str = ""
    """Why the versions of the control node's machine are not known."""
    _threads: OwnedThreads = field(default_factory=OwnedThreads)

    def __enter__(self) -> SpareChecks:
        for host in [self.control, *self.spares] if self.spares else ():
            self._running[host] = check = _Check.start(
                [*self.ssh, "--", host, self.command]
            )
            self._threads.begin(
                partial(check.deliver, self.delivery), "placer delivery"
            )
        return self

    def __exit__(self, *_: object) -> None:
        for check in self._running.values():
            check.child.end()
            check.close()
        self._threads.join(END_LIMIT)

    @property
    def is_done(self) -> bool:
        """Whether all machines have been checked."""
        return not self._running

    def news(self) -> Iterator[tuple[str, str, bool]]:
        """Yield a spare machine, a message about it, and whether it cannot be used, for each
        new message."""
        for host, check in [*self._running.items()]:
            status = check.child.wait(0.0)
            is_late = time.monotonic() - check.begun > self.limit
            if status is None and not is_late:
                continue
            del self._running[host]
            check.child.end()
            out, said = check.read()
            check.close()
            lines = out.splitlines()
            if status == 0 and lines:
                self._versions[host] = json.loads(lines[-1])
                continue
            why = f"its check has not ended within {self.limit:g} s"
            if status is not None:
                why = _reason(status, said)
            if host == self.control:
                self._unknown = why
            else:
                yield host, f"the spare machine {host} cannot be used: {why}", True
        yield from self._compare()
        if self.is_done and self._versions and self._unknown:
            self._versions.clear()
            text = (
                f"the versions of the spare machines are not compared: {self._unknown}"
            )
            yield self.control, text, False

    def _compare(self) -> Iterator[tuple[str, str, bool]]:
        """Compare the versions of new spare machines with those of the control node."""
        if self.control not in self._versions:
            return
        own = self._versions[self.control]
        for host in [host for host in self._versions if host != self.control]:
            try:
                versions = {self.control: own, host: self._versions.pop(host)}
                for text in check_versions(versions):
                    yield host, text, False
            except RunError as error:
                text = f"the spare machine {host} cannot be used: {error}"
                yield host, text, True


@dataclass(frozen=True)
class _Check:
    """A running check: its process, the end of its standard input, and its output."""

    child: Child
    stdin: int
    begun: float
    out: IO[bytes]
    said: IO[bytes]

    @classmethod
    def start(cls, command: Sequence[str]) -> _Check:
        out, said = unnamed_file(), unnamed_file()
        read, write = os.pipe()
        try:
            child = Child.start(command, stdin=read, stdout=out, stderr=said)
        except OSError as error:
            os.close(write)
            raise RunError(f"ssh cannot be started: {error}") from error
        finally:
            os.close(read)
        return cls(child, write, time.monotonic(), out, said)

    def deliver(self, delivery: bytes) -> None:
        # If ssh has ended, its exit status gives the reason.
        with suppress(BrokenPipeError), open(self.stdin, "wb", buffering=0):
            write_all(self.stdin, delivery)

    def read(self) -> tuple[str, str]:
        """Return the output and the error messages of the process, which has ended."""
        texts = []
        for file in (self.out, self.said):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
        return texts[0], texts[1]

    def close(self) -> None:
        self.child.close()
        self.out.close()
        self.said.close()


def _reason(status: int, said: str) -> str:
    """Return why a check has failed."""
    if status == SSH_FAILED:
        return f"ssh failed: {last_line_of(said.encode()) or 'no reason was given'}"
    error = said.rpartition("error: ")[2].strip()
    return error or f"its check ended with exit status {status}"
