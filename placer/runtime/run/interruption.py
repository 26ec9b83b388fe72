"""What signals do to a run that saves its parameters, in processes or in threads.

The first signal stops all nodes after the same step (`placer.runtime.run.stopping`), and
they save. It ends the run at once, and nothing is saved, if the run has failed or no step
was started. After SIGTERM and SIGHUP the nodes have a limited time to stop, but all the
time that they need to save. A second signal ends the run at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Final

from placer.runtime.run.events import AFTER_LAST_BARRIER, BEFORE_FIRST_STEP

STOPPING: Final = (
    "interrupted: all nodes stop after the same step and save; another signal ends them"
    " at once"
)
"""The warning when a signal stops a run that can still save its parameters."""


class Decision(Enum):
    """What to do about the signals so far."""

    CONTINUE = auto()
    STOP = auto()  # all nodes, after the same step; decided once
    END = auto()  # at once, without saving


@dataclass(slots=True)
class Interruption:
    """Decides what the signals to a run do.

    Attributes:
        params_file: the file that the run saves its parameters to, if it saves any.
        stopping_since: the time of the first signal, if the run can still save.
        why: why nothing was saved.
    """

    params_file: Path | None
    stopping_since: float | None = None
    why: str = "the file was not completely written"

    def decide(
        self, timeouts: Sequence[float | None], state: str, *, can_save: bool = True
    ) -> Decision:
        """Return what to do now.

        Args:
            timeouts: for each signal so far, the seconds in which the nodes have to
                begin to save, or None for no limit.
            state: the state of the control node.
            can_save: whether the run has neither failed nor its result.
        """
        if not timeouts:
            return Decision.CONTINUE
        if self.stopping_since is None and state in BEFORE_FIRST_STEP:
            return self._end("the first step had not finished")
        if len(timeouts) > 1:
            return self._end("there was a second signal")
        saves = state in ("saving", *AFTER_LAST_BARRIER)
        if self.stopping_since is None:
            if self.params_file is None or not can_save:
                return Decision.END
            self.stopping_since = time.monotonic()
            return Decision.CONTINUE if saves else Decision.STOP
        limit = timeouts[0]
        if saves or limit is None or time.monotonic() - self.stopping_since <= limit:
            return Decision.CONTINUE
        return self._end(f"the nodes did not stop within {limit:g} s")

    def _end(self, why: str) -> Decision:
        self.why = why
        return Decision.END

    def outcome(self, steps: int | None, failure: str | None = None) -> str:
        """Return the text for an interrupted run: what it has saved, or why nothing.

        Args:
            steps: the number of steps of its result, or None without a result.
            failure: what has failed, if anything.
        """
        if self.params_file is None:
            has_failed = failure is not None and steps is None
            return f"the run had failed: {failure}" if has_failed else ""
        if steps is not None:
            return (
                f"stopped after step {steps}; the parameters are in {self.params_file}"
            )
        return f"nothing was saved: {failure or self.why}"
