"""Stops the run when the minimized loss is not finite."""

from __future__ import annotations

import math
from collections.abc import Callable

from placer.errors import RunError
from placer.plan.plan import Plan
from placer.runtime.control.events import NodeWarning, Report


class DivergedError(RunError):
    """Raised when the run was stopped because the minimized loss was not finite."""


class LossWatch:
    """Checks the minimized loss of every step, on the control node.

    The first loss that is not finite stops the run. With `nan: warn` in the spec, it only
    causes a warning.

    Args:
        plan: the plan.
        stop: called to request a stop of the run.
        report: called with the warning.
    """

    def __init__(self, plan: Plan, stop: Callable[[], None], report: Report) -> None:
        self._plan, self._stop, self._report = plan, stop, report
        self._message = ""

    def __call__(self, step: int, loss: float) -> None:
        """Check the loss of one step. Call this for the steps in order, from one thread."""
        if math.isfinite(loss) or self._message:
            return
        self._message = f"the loss '{self._plan.settings.train.minimize}' is {loss} after step {step}"
        if self._plan.settings.train.nan == "stop":
            self._stop()
        else:
            message = f"{self._message}; the run continues because of train.nan: warn"
            self._report(NodeWarning(message))

    @property
    def stops(self) -> bool:
        """Whether the loss has stopped the run."""
        return bool(self._message) and self._plan.settings.train.nan == "stop"

    def check(self, last: int, *, saves: bool) -> None:
        """Raise DivergedError if the loss has stopped the run.

        Args:
            last: the last step of the run.
            saves: whether the options ask for the parameters to be saved.
        """
        if not self.stops:
            return
        message = f"{self._message}; all nodes stopped after step {last}"
        if saves:
            message += ", and no parameters were saved"
        raise DivergedError(
            message,
            hint="find the first op with NaN with --debug-nans; try a lower learning rate"
            " or train.clip; or set train.nan: warn to continue such a run",
        )
