"""A job of Slurm, and the commands that speak with its controller."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from placer.errors import PlacerError, RunError
from placer.runtime.run.signals import STOP_SIGNAL

TIMEOUT: Final = 60.0
"""Seconds in which a command of Slurm has to answer."""
ENDED: Final = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
)
"""The states of a job that is over."""


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job of Slurm; see `placer.engines.engine.Job`.

    Attributes:
        number: its number, as scancel takes it.
        folder: the folder with what its nodes write.
        nodes: the names of its nodes in the order of the tasks.
    """

    number: str
    folder: Path
    nodes: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"Slurm job {self.number}"

    @property
    def cancel_command(self) -> str:
        return f"scancel {self.number}"

    @property
    def log(self) -> Path:
        """The log of the batch script."""
        return self.folder.with_name(f"{self.folder.name}.log")

    def stop(self) -> None:
        run(["scancel", f"--signal={STOP_SIGNAL.name}", self.number])

    def cancel(self) -> None:
        run(["scancel", self.number])


def ask(job: SlurmJob) -> tuple[str, str]:
    """Return the state of a job, empty if Slurm does not know it any more, and its
    reason."""
    command = ["squeue", "--noheader", "--states=all", "--format=%T|%r"]
    try:
        answer = run([*command, f"--jobs={job.number}"])
    except RunError as error:
        if "Invalid job id" in str(error):
            return "", ""
        raise
    states = [line.partition("|") for line in answer.splitlines() if line.strip()]
    if not states:
        return "", ""
    # A heterogeneous job is over when all its parts are.
    state, _, reason = next((s for s in states if s[0] not in ENDED), states[0])
    return state, reason


def run(command: Sequence[str], folder: Path | None = None) -> str:
    """Run a command of Slurm, and return what it prints."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise PlacerError(
            f"there is no '{command[0]}' on this machine",
            hint="run this where jobs are submitted to Slurm; --write DIR only writes"
            " the files of the job",
        ) from None
    except subprocess.TimeoutExpired:
        raise RunError(f"{command[0]} has not answered in {TIMEOUT:g} s") from None
    if done.returncode:
        prefix = re.compile(rf"^{command[0]}: (error: )?")
        lines = [prefix.sub("", line) for line in done.stderr.splitlines() if line]
        said = "; ".join(lines) or f"status {done.returncode}"
        raise RunError(f"{command[0]} failed: {said}")
    return done.stdout
