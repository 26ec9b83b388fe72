"""Messages for the user about the state of a job."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from placer.errors import RunError
from placer.launcher.engines.engine import JobNote
from placer.launcher.engines.slurm.asking import Asking

UNANSWERED: Final = 15.0
"""Seconds without an answer of Slurm's controller before the user is told."""
SILENT: Final = 600.0
"""Seconds without news from the controller and the nodes before a job is given up."""
_STATES: Final = {"PENDING": "waits", "SUSPENDED": "is suspended"}
"""Words for the states of a job that does not run."""
_STUCK: Final = (
    "BadConstraints",
    "JobHeldAdmin",
    "JobHeldUser",
    "PartitionConfig",
    "PartitionDown",
    "PartitionInactive",
    "PartitionNodeLimit",
    "PartitionTimeLimit",
)
"""Reasons for which a job waits until somebody changes something."""


@dataclass(slots=True)
class Notes:
    """Makes a message when the state of a job changes."""

    slurm: Asking
    _state: str = ""
    _is_unanswered: bool = False

    def new(self, heard: float) -> Iterator[JobNote]:
        """Yield new messages. `heard` is the time of the last news from a node, from
        `time.monotonic`. Raises RunError after `SILENT` seconds without news from Slurm
        and the nodes."""
        yield from self._on_silence(heard)
        yield from self._on_state()

    def _on_silence(self, heard: float) -> Iterator[JobNote]:
        job, error, now = self.slurm.job, self.slurm.error, time.monotonic()
        silent = now - self.slurm.answered
        if error and min(silent, now - heard) > SILENT:
            raise RunError(
                f"{job.title} can no longer be followed: {error}",
                hint=f"the job keeps running; end it with: {job.cancel_command}",
            )
        if silent > UNANSWERED and not self._is_unanswered:
            self._is_unanswered = True
            # Without an error, the command may still wait for its answer.
            why = f": {error}" if error else ""
            yield JobNote(f"Slurm does not answer{why}", warns=True)
        elif silent <= UNANSWERED and self._is_unanswered:
            self._is_unanswered = False
            yield JobNote("Slurm answers again")

    def _on_state(self) -> Iterator[JobNote]:
        job, answer = self.slurm.job, self.slurm.answer
        state = "" if answer is None else _STATES.get(answer.state, "")
        if answer is not None and state and answer.reason != "None":
            state += f": {answer.reason}"
        without_reason = ("", "waits")  # squeue may give no reason at first.
        if answer is not None and state not in (self._state, *without_reason):
            yield JobNote(f"{job.title} {state}", warns=answer.reason in _STUCK)
        self._state = state
