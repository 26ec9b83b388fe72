"""A job of Slurm."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from placer.errors import RunError
from placer.launcher.engines.slurm.commands import run
from placer.runtime.signals.signals import STOP_SIGNAL

_BY_SLURM: Final = (
    "BOOT_FAIL",
    "CANCELLED",
    "DEADLINE",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
)
"""The states of a job that Slurm has ended."""
ENDED: Final = (*_BY_SLURM, "COMPLETED", "FAILED")
"""The states of a job that is over."""
_ENDING: Final = ("DeadLine", "NodeDown", "OutOfMemory", "Preempted", "TimeLimit")
"""Reasons of Slurm to end a job that still runs."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What squeue says of a job.

    Attributes:
        state: its state; empty if Slurm does not know it any more.
        reason: why it waits, or has ended.
        left: what is left of its time, such as `1:58`.
    """

    state: str
    reason: str = ""
    left: str = ""

    @property
    def words(self) -> str:
        """What it is, in Slurm's words, such as `has state COMPLETING (TimeLimit)`, with
        what is left of its time while it runs."""
        if not self.state:
            return "is not known to Slurm any more"
        reason = "" if self.reason in ("", "None") else f" ({self.reason})"
        is_limited = self.state == "RUNNING" and self.left[:1].isdecimal()
        left = f", {self.left} left" if is_limited else ""
        return f"has state {self.state}{reason}{left}"

    @property
    def is_ended_by_slurm(self) -> bool:
        """Whether Slurm has ended the job, or says why it is about to."""
        return self.reason in _ENDING or self.state in _BY_SLURM


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job of Slurm; see `placer.launcher.engines.engine.Job`.

    Attributes:
        number: its number, as scancel takes it.
        folder: the folder with what its nodes write.
        nodes: the names of its nodes in the order of the tasks.
        cluster: the cluster that has it, if sbatch has named one.
        ask_at_once: set when squeue has news, as after `cancel`.
    """

    number: str
    folder: Path
    nodes: tuple[str, ...]
    cluster: str = ""
    ask_at_once: threading.Event = field(
        default_factory=threading.Event, repr=False, compare=False
    )

    @property
    def title(self) -> str:
        return f"Slurm job {self.number}"

    @property
    def cancel_command(self) -> str:
        return " ".join(["scancel", *self._of_cluster, self.number])

    @property
    def log(self) -> Path:
        """The log of the batch script."""
        return self.folder.with_name(f"{self.folder.name}.log")

    def stop(self) -> None:
        signal = f"--signal={STOP_SIGNAL.name}"
        run(["scancel", *self._of_cluster, signal, self.number])

    def cancel(self) -> None:
        run(["scancel", *self._of_cluster, self.number])
        self.ask_at_once.set()  # a job that waits has no nodes that tell of their end

    def ask(self) -> Answer:
        """Return what squeue says of it."""
        command = ["squeue", "--noheader", "--states=all", "--format=%T|%r|%L"]
        try:
            told = run([*command, *self._of_cluster, f"--jobs={self.number}"])
        except RunError as error:
            if "Invalid job id" in str(error):
                return Answer("")
            raise
        lines = [line for line in told.splitlines() if line.count("|") > 1]
        parts = [_read_answer(line) for line in lines]
        if not parts:
            return Answer("")
        # A heterogeneous job is over when all its parts are.
        return next((each for each in parts if each.state not in ENDED), parts[0])

    def ask_closely(self) -> Answer:
        """Return what squeue says of it, with the reason `Preempted` from the time that it
        is to leave its machines, which only scontrol tells while it runs."""
        answer = self.ask()
        if answer.state != "RUNNING":
            return answer
        command = ["scontrol", "--oneliner", *self._of_cluster, "show", "job"]
        told = run([*command, self.number])
        is_preempted = re.search(r"\bPreemptTime=[0-9]", told) is not None
        return replace(answer, reason="Preempted") if is_preempted else answer

    @property
    def _of_cluster(self) -> list[str]:
        return [f"--clusters={self.cluster}"] if self.cluster else []


def _read_answer(line: str) -> Answer:
    state, _, rest = line.partition("|")
    reason, _, left = rest.rpartition("|")
    return Answer(state, reason, left)
