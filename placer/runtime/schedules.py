"""Learning-rate schedules: functions of the step, computed in Python's float64.

The step counts from 0 at the first update, as optax's count does, so that
`exponential` and `cosine` equal `optax.exponential_decay` and
`optax.cosine_decay_schedule`, and `warmup` equals `optax.join_schedules` of a linear
schedule and the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import cos, pi
from typing import Any

from placer.errors import PlacerError
from placer.graph.schedules import check

Schedule = Callable[[int], float]


def schedule(spec: float | Mapping[str, Any]) -> Schedule:
    """The function step -> learning rate of a schedule as a spec writes it.

    Forms: a number; `{exponential: {init, rate, steps, staircase: false}}`;
    `{cosine: {init, steps, alpha: 0}}`; `{warmup: {steps, from: 0.0, then: …}}`.
    PlacerError for any other.
    """
    if problem := check(spec):
        raise PlacerError(problem)
    return _build(spec)


def _build(spec: float | Mapping[str, Any]) -> Schedule:
    if not isinstance(spec, Mapping):
        rate = float(spec)
        return lambda step: rate
    ((name, body),) = spec.items()
    match name:
        case "exponential":
            return _exponential(**body)
        case "cosine":
            return _cosine(**body)
        case _:
            return _warmup(body["steps"], body.get("from", 0.0), _build(body["then"]))


def _exponential(
    init: float, rate: float, steps: int, staircase: bool = False
) -> Schedule:
    def at(step: int) -> float:
        power = step // steps if staircase else step / steps
        return float(init * rate**power)

    return at


def _cosine(init: float, steps: int, alpha: float = 0.0) -> Schedule:
    def at(step: int) -> float:
        decay = 0.5 * (1.0 + cos(pi * min(step, steps) / steps))
        return float(init * ((1.0 - alpha) * decay + alpha))

    return at


def _warmup(steps: int, start: float, then: Schedule) -> Schedule:
    peak = then(0)

    def at(step: int) -> float:
        if step < steps:
            return float(start + (peak - start) * (step / steps))
        return then(step - steps)

    return at
