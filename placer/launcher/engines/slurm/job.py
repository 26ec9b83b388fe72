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
"""States of a job that Slurm itself has ended."""
ENDED: Final = (*_BY_SLURM, "COMPLETED", "FAILED")
"""States of a job that is over."""
WAITING: Final = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT")
"""States of a job that has not started, or has not started again."""
_ENDING: Final = ("DeadLine", "NodeDown", "OutOfMemory", "Preempted", "TimeLimit")
"""Reasons for which Slurm ends a job that still runs."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of squeue about a job.

    Attributes:
        state: its state; empty if Slurm no longer knows the job.
        reason: the reason why it waits or has ended.
        left: the rest of its time limit, such as `1:58`.
    """

    state: str
    reason: str = ""
    left: str = ""

    @property
    def words(self) -> str:
        """Return the state in Slurm's words, such as `has state COMPLETING
        (TimeLimit)`. While the job runs, the rest of its time limit is included."""
        if not self.state:
            return "is no longer known to Slurm"
        reason = "" if self.reason in ("", "None") else f" ({self.reason})"
        is_limited = self.state == "RUNNING" and self.left[:1].isdecimal()
        left = f", {self.left} left" if is_limited else ""
        return f"has state {self.state}{reason}{left}"

    @property
    def is_ended_by_slurm(self) -> bool:
        """True if Slurm has ended the job, or gives a reason why it is about to."""
        return self.reason in _ENDING or self.state in _BY_SLURM


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job of Slurm; see `placer.launcher.engines.engine.Job`.

    Attributes:
        number: its number, as scancel takes it.
        folder: the folder where its nodes write, which is another one for each start.
        nodes: the names of its nodes, in the order of the tasks.
        cluster: the cluster of the job, if sbatch has printed one.
        restarts: whether Slurm may start the job again.
        start: how often Slurm has started the job again.
        ask_at_once: set when squeue has news, for example after `cancel`.
    """

    number: str
    folder: Path
    nodes: tuple[str, ...]
    cluster: str = ""
    restarts: bool = False
    start: int = 0
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
        """The log of the batch script, with the output of all starts."""
        return self.folder.with_name(f"job-{self.number}.log")

    def at_start(self, count: int) -> SlurmJob:
        """Return the job after Slurm has started it again for the `count`-th time."""
        folder = self.folder.with_name(f"job-{self.number}-{count}")
        return replace(self, folder=folder, start=count)

    def stop(self) -> None:
        signal = f"--signal={STOP_SIGNAL.name}"
        run(["scancel", *self._of_cluster, signal, self.number])

    def cancel(self) -> None:
        run(["scancel", *self._of_cluster, self.number])
        # A waiting job has no nodes that could report its end, so ask Slurm at once.
        self.ask_at_once.set()

    def ask(self) -> Answer:
        """Return the answer of squeue."""
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
        ended = [each for each in parts if each.state in ENDED]
        left = [each for each in parts if each.state not in ENDED]
        # Slurm may start the first part again without the others. Such a job waits forever.
        waits = self.restarts and all(each.state in WAITING for each in left)
        # Otherwise, a heterogeneous job is over when all its parts are over.
        return ended[0] if ended and (waits or not left) else left[0]

    def ask_closely(self) -> Answer:
        """Return the answer of squeue, with the reason `Preempted` once a preemption is
        planned. While a job runs, only scontrol shows the planned preemption."""
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
