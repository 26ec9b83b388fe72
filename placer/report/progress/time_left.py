"""Estimates the remaining time of a run."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from placer.runtime.control.events import Start, Step

WINDOW: Final = 60.0
"""The duration of a step is averaged over this many seconds of training."""
SAMPLE_EVERY: Final = 0.25
"""Shortest time between two recorded steps, in seconds."""
LEAST: Final = 1.0
"""Seconds of training before the first estimate."""
SMOOTHING: Final = 10.0
"""Time constant with which the shown time follows new estimates, in seconds. Shorter in
the first seconds, when estimates are least exact."""
EVALUATION_COST: Final = 1 / 3
"""Assumed time of a row in an evaluation, relative to a row in a step, before the first
evaluation. A backward pass takes about twice as long as a forward pass."""


@dataclass(slots=True)
class TimeLeft:
    """Estimates when a run ends, from the times of its steps and evaluations.

    The first step is slow and does not count. Evaluations are timed separately, and all
    remaining ones are included from the start, so an evaluation does not change the
    estimate. Between two steps the remaining time decreases with the clock.
    """

    start: Start
    _window: deque[tuple[int, float]] = field(default_factory=deque)
    _newest: tuple[int, float] | None = None
    _evaluations: int = 0
    _evaluating: float = 0.0
    _waited: float = 0.0
    _end: float | None = None
    _since: float = 0.0
    _updated: float = 0.0

    def add(self, step: Step, now: float) -> None:
        """Add the next step. `now` is a time on the clock that `left` uses."""
        point = step.step, step.seconds - self._evaluating - self._waited
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

    def wait(self, seconds: float) -> None:
        """Leave out a wait for the files of a stream."""
        if self._newest is not None:  # before the first step, no time is measured
            self._waited += seconds

    def left(self, now: float) -> float | None:
        """Return the remaining seconds, or None if unknown."""
        if self._end is None or not self.start.last_step:
            return None
        return max(0.0, self._end - now)

    @property
    def step_seconds(self) -> float | None:
        """The duration of a step without evaluations; None if unknown."""
        if self._newest is None or self._newest[0] == self._window[0][0]:
            return None
        (first, begin), (last, end) = self._window[0], self._newest
        return (end - begin) / (last - first)

    @property
    def _measured(self) -> float:
        assert self._newest is not None
        return self._newest[1] - self._window[0][1]

    def _estimate(self) -> float:
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
        first, _ = self.start.before  # epochs count from there
        every, last = self.start.evaluation_every, self.start.last_step - first
        step = max(0, step - first)
        if not every or step >= last:
            return 0
        return last // every - step // every + bool(last % every)
