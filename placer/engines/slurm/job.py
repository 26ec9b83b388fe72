"""A job of Slurm."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from placer.engines.slurm.commands import run
from placer.errors import RunError
from placer.runtime.run.signals import STOP_SIGNAL

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
        cluster: the cluster that has it, if sbatch has named one.
    """

    number: str
    folder: Path
    nodes: tuple[str, ...]
    cluster: str = ""

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

    def ask(self) -> tuple[str, str]:
        """Return its state, empty if Slurm does not know it any more, and the reason."""
        command = ["squeue", "--noheader", "--states=all", "--format=%T|%r"]
        try:
            answer = run([*command, *self._of_cluster, f"--jobs={self.number}"])
        except RunError as error:
            if "Invalid job id" in str(error):
                return "", ""
            raise
        states = [line.partition("|") for line in answer.splitlines() if "|" in line]
        if not states:
            return "", ""
        # A heterogeneous job is over when all its parts are.
        state, _, reason = next((s for s in states if s[0] not in ENDED), states[0])
        return state, reason

    @property
    def _of_cluster(self) -> list[str]:
        return [f"--clusters={self.cluster}"] if self.cluster else []
