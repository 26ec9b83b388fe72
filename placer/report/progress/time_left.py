"""Estimates how long a run still takes."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from placer.runtime.control.events import Start, Step

WINDOW: Final = 60.0
"""The seconds of training that the duration of a step is averaged over."""
SAMPLE_EVERY: Final = 0.25
"""The shortest time between two steps that the window remembers, in seconds."""
LEAST: Final = 1.0
"""The seconds of training before the first estimate."""
SMOOTHING: Final = 10.0
"""The time in which the shown time approaches a new estimate, in seconds; less in the
first seconds after the first estimate, which is the least exact."""
EVALUATION_COST: Final = 1 / 3
"""The time for a row of an evaluation, as a share of that for a row of a step, until
the first evaluation: a backward pass takes about twice as long as a forward pass."""


@dataclass(slots=True)
class TimeLeft:
    """Estimates when a run ends, from the times of its steps and evaluations.

    The first step, which is slow, does not count. Evaluations count on their own, so
    the estimate does not change with each of them: those that are still to come are
    part of it from the beginning. Between two steps the time that is left decreases
    with the clock.
    """

    start: Start
    _window: deque[tuple[int, float]] = field(default_factory=deque)
    _newest: tuple[int, float] | None = None
    _evaluations: int = 0
    _evaluating: float = 0.0
    _end: float | None = None
    _since: float = 0.0
    _updated: float = 0.0

    def add(self, step: Step, now: float) -> None:
        """Add the next step; `now` is the time on the clock of `left`."""
        point = step.step, step.seconds - self._evaluating
        if step.eval is not None:
            self._evaluations += 1
            self._evaluating += step.evaluation_seconds
        self._newest = point
        if not self._window or point[1] - self._window[-1][1] >= SAMPLE_EVERY:
            self._window.append(point)
        while len(self._window) > 2 and point[1] - self._window[1][1] >= WINDOW:
            self._window.popleft()
        if self._measured < LEAST:
            return
        end = now + self._estimate()
        if self._end is None:
            self._end, self._since = end, now
        elif now > self._updated:
            horizon = min(SMOOTHING, now - self._since)
            weight = 1 - math.exp(-(now - self._updated) / horizon)
            self._end += weight * (end - self._end)
        self._updated = now

    def left(self, now: float) -> float | None:
        """Return the seconds that are left, None as long as that is not known."""
        return None if self._end is None else max(0.0, self._end - now)

    @property
    def step_seconds(self) -> float | None:
        """The duration of a step, without evaluations; None if it is not known."""
        if self._newest is None or self._newest[0] == self._window[0][0]:
            return None
        (first, begin), (last, end) = self._window[0], self._newest
        return (end - begin) / (last - first)

    @property
    def _measured(self) -> float:
        assert self._newest is not None
        return self._newest[1] - self._window[0][1]

    def _estimate(self) -> float:
        """Return the seconds from the newest step to the end."""
        assert self._newest is not None
        of_step = self.step_seconds or 0.0
        if self._evaluations:
            of_evaluation = self._evaluating / self._evaluations
        else:
            rows = self.start.evaluation_rows / max(1, self.start.rows)
            of_evaluation = EVALUATION_COST * rows * of_step
        step = self._newest[0]
        steps = max(0, self.start.last_step - step)
        return steps * of_step + self._evaluations_after(step) * of_evaluation

    def _evaluations_after(self, step: int) -> int:
        every, last = self.start.evaluation_every, self.start.last_step
        if not every or step >= last:
            return 0
        return last // every - step // every + bool(last % every)
