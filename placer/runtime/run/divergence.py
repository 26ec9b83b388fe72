"""Watching the minimized loss: what happens when it is not finite."""

from __future__ import annotations

import math
from collections.abc import Callable

from placer.build.plan import Plan
from placer.errors import RunError
from placer.runtime.run.events import Report


class DivergedError(RunError):
    """The minimized loss was not finite, and the run was stopped for it."""


class LossWatch:
    """Sees the minimized loss of every step, on the control node.

    The first that is not finite calls `stop`, or with `nan: warn` reports a warning.
    """

    def __init__(self, plan: Plan, stop: Callable[[], None], report: Report) -> None:
        self._plan, self._stop, self._report = plan, stop, report
        self._found = ""

    def __call__(self, step: int, loss: float) -> None:
        """Look at the loss of a step; any thread, steps in their order."""
        if math.isfinite(loss) or self._found:
            return
        self._found = f"the loss '{self._plan.minimize}' is {loss} after step {step}"
        if self._plan.nan == "stop":
            self._stop()
        else:
            message = f"{self._found}; the run goes on, as train.nan: warn says"
            self._report({"event": "warning", "message": message})

    def check(self, last: int, *, saves: bool) -> None:
        """DivergedError if the run was stopped for its loss; `last` is its last step.

        `saves` says that the parameters were to be saved.
        """
        if not self._found or self._plan.nan == "warn":
            return
        message = f"{self._found}; all nodes stopped after step {last}"
        if saves:
            message += ", and no parameters were saved"
        raise DivergedError(
            message,
            hint="--debug-nans names the op that it comes from; a lower learning rate or"
            " train.clip may avoid it; with train.nan: warn the run goes on",
        )
