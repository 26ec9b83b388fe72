"""What the user hears of a job while it is not over, besides its run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from placer.errors import RunError
from placer.launcher.engines.engine import JobNote
from placer.launcher.engines.slurm.asking import Asking

UNANSWERED: Final = 15.0
"""Seconds without an answer of Slurm's controller before the user hears of it."""
SILENT: Final = 600.0
"""Seconds without a word of the controller and of the nodes after which a job is given
up."""
_STATES: Final = {"PENDING": "waits", "SUSPENDED": "is suspended"}
"""The states of a job that does not run."""
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
"""Reasons of Slurm for which a job waits until somebody changes something."""


@dataclass(slots=True)
class Notes:
    """The notes on a job; each is made when what it tells of has changed."""

    slurm: Asking
    _state: str = ""
    _is_unanswered: bool = False

    def new(self, heard: float) -> Iterator[JobNote]:
        """Yield what is new.

        Args:
            heard: when a node has written something, as `time.monotonic` says.

        Raises:
            RunError: for `SILENT` seconds nothing was heard, of Slurm nor of the nodes.
        """
        yield from self._on_silence(heard)
        yield from self._on_state()

    def _on_silence(self, heard: float) -> Iterator[JobNote]:
        job, error, now = self.slurm.job, self.slurm.error, time.monotonic()
        silent = now - self.slurm.answered
        if error and min(silent, now - heard) > SILENT:
            raise RunError(
                f"{job.title} cannot be followed any more: {error}",
                hint=f"it goes on; this ends it: {job.cancel_command}",
            )
        if silent > UNANSWERED and not self._is_unanswered:
            self._is_unanswered = True
            why = f": {error}" if error else ""  # a command may still wait
            yield JobNote(f"Slurm does not answer{why}", warns=True)
        elif silent <= UNANSWERED and self._is_unanswered:
            self._is_unanswered = False
            yield JobNote("Slurm answers again")

    def _on_state(self) -> Iterator[JobNote]:
        job, answer = self.slurm.job, self.slurm.answer
        state = "" if answer is None else _STATES.get(answer.state, "")
        if answer is not None and state and answer.reason != "None":
            state += f": {answer.reason}"
        without_reason = ("", "waits")  # squeue may give none at first
        if answer is not None and state not in (self._state, *without_reason):
            yield JobNote(f"{job.title} {state}", warns=answer.reason in _STUCK)
        self._state = state
