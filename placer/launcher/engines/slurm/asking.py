"""Asks Slurm what has become of a job, every few seconds, while the job is followed by its
files: the controller may not answer for minutes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from placer.launcher.engines.slurm.job import Answer, SlurmJob
from placer.system.owned_threads import END_LIMIT, OwnedThreads

ASK: Final = 5.0
"""Seconds between an answer and the next question."""


@dataclass(slots=True)
class Asking:
    """What Slurm says of a job.

    Attributes:
        answer: the last answer, once there is one.
        asked: when that was asked, as `time.monotonic` says.
        answered: when it came; before, when the first question was asked.
        error: why the last question has failed; empty if it was answered.
    """

    job: SlurmJob
    answer: Answer | None = None
    asked: float = 0.0
    answered: float = field(default_factory=time.monotonic)
    error: str = ""
    _is_urgent: bool = False
    _is_closed: bool = False

    def ask_now(self) -> None:
        """Ask at once, and closely."""
        self._is_urgent = True
        self.job.ask_at_once.set()

    def close(self) -> None:
        """Ask no more."""
        self._is_closed = True
        self.job.ask_at_once.set()

    def run(self) -> None:
        """Ask, until `close`."""
        while True:
            self.job.ask_at_once.clear()
            if self._is_closed:
                return
            is_urgent, self._is_urgent = self._is_urgent, False
            asked = time.monotonic()
            try:
                answer = self.job.ask_closely() if is_urgent else self.job.ask()
            except Exception as error:  # Notes reports it; asked again
                self.error = str(error)
            else:
                self.answer, self.asked, self.error = answer, asked, ""
                self.answered = time.monotonic()
            self.job.ask_at_once.wait(ASK)


@contextmanager
def asking(job: SlurmJob) -> Iterator[Asking]:
    """Ask for a job, in a thread, within the context."""
    made = Asking(job)
    threads = OwnedThreads()
    threads.begin(made.run, "placer squeue")
    try:
        yield made
    finally:
        made.close()
        threads.join(END_LIMIT)
