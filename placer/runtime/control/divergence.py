"""Watch the minimized loss, and stop the run when it is not finite."""

from __future__ import annotations

import math
from collections.abc import Callable

from placer.errors import RunError
from placer.plan.plan import Plan
from placer.runtime.control.events import NodeWarning, Report


class DivergedError(RunError):
    """The run was stopped because the minimized loss was not finite."""


class LossWatch:
    """Checks the minimized loss of every step, on the control node.

    The first loss that is not finite calls `stop`, or reports a warning if the spec has
    `nan: warn`.

    Args:
        plan: the plan.
        stop: requests that the run stops.
        report: receives the warning.
    """

    def __init__(self, plan: Plan, stop: Callable[[], None], report: Report) -> None:
        self._plan, self._stop, self._report = plan, stop, report
        self._message = ""

    def __call__(self, step: int, loss: float) -> None:
        """Check the loss of a step. Steps come in order, from any one thread."""
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
        """Whether the run stops because of its loss."""
        return bool(self._message) and self._plan.settings.train.nan == "stop"

    def check(self, last: int, *, saves: bool) -> None:
        """Raise DivergedError if the run was stopped because of its loss.

        Args:
            last: the last step of the run.
            saves: whether the parameters would have been saved.
        """
        if not self.stops:
            return
        message = f"{self._message}; all nodes stopped after step {last}"
        if saves:
            message += ", and no parameters were saved"
        raise DivergedError(
            message,
            hint="--debug-nans names the op that it comes from; a lower learning rate or"
            " train.clip may avoid it; with train.nan: warn the run continues",
        )
