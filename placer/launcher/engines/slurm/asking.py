"""Asks Slurm for the state of a job every few seconds, in a thread.

The thread is separate because the controller may not answer for minutes.
"""

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
    """The state of a job as Slurm reports it.

    Attributes:
        answer: the last answer; None before the first one.
        asked: the time of the question for the last answer, from `time.monotonic`.
        answered: the time of the last answer, or at first of the first question.
        error: the error of the last question; empty if it was answered.
    """

    job: SlurmJob
    answer: Answer | None = None
    asked: float = 0.0
    answered: float = field(default_factory=time.monotonic)
    error: str = ""
    _is_urgent: bool = False
    _is_closed: bool = False

    def ask_now(self) -> None:
        """Ask at once, and for more details."""
        self._is_urgent = True
        self.job.ask_at_once.set()

    def close(self) -> None:
        """Stop asking."""
        self._is_closed = True
        self.job.ask_at_once.set()

    def run(self) -> None:
        """Ask until `close` is called."""
        while True:
            self.job.ask_at_once.clear()
            if self._is_closed:
                return
            is_urgent, self._is_urgent = self._is_urgent, False
            asked = time.monotonic()
            try:
                answer = self.job.ask_closely() if is_urgent else self.job.ask()
            except Exception as error:
                # Notes reports the error; the next question may succeed.
                self.error = str(error)
            else:
                self.answer, self.asked, self.error = answer, asked, ""
                self.answered = time.monotonic()
            self.job.ask_at_once.wait(ASK)


@contextmanager
def asking(job: SlurmJob) -> Iterator[Asking]:
    """Ask for the state of a job in a thread, until the end of the context."""
    made = Asking(job)
    threads = OwnedThreads()
    threads.begin(made.run, "placer squeue")
    try:
        yield made
    finally:
        made.close()
        threads.join(END_LIMIT)
