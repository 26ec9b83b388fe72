"""Learning-rate schedules: functions of the step, computed in Python's float64.

The step counts from 0 at the first update, as optax's count does. `exponential`,
`linear`, `polynomial` and `cosine` equal `optax.exponential_decay`, `linear_schedule`,
`polynomial_schedule` and `cosine_decay_schedule`; `piecewise` and `warmup` equal
`optax.join_schedules`, of constants and of a linear schedule and the rest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from math import cos, exp, pi
from typing import Any

from placer.config.schedules import check
from placer.errors import PlacerError

Schedule = Callable[[int], float]


def schedule(spec: float | Mapping[str, Any]) -> Schedule:
    """The function step -> learning rate of a schedule as a spec writes it.

    A number, or one of the forms of `placer.config.schedules.FORMS`, its batch filled
    in. PlacerError for any other.
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
        case "warmup":
            return _warmup(body["steps"], body.get("from", 0.0), _build(body["then"]))
        case "linear_scaling":
            if "batch" not in body:
                raise PlacerError("schedule 'linear_scaling': 'batch' is missing")
            return _linear_scaling(**{**body, "then": _build(body["then"])})
        case _:
            return _BUILDERS[name](**body)


def _exponential(
    init: float, rate: float, steps: int, staircase: bool = False
) -> Schedule:
    return lambda step: float(init * rate ** _passed(step, steps, staircase))


def _natural_exp(
    init: float, rate: float, steps: int, staircase: bool = False
) -> Schedule:
    return lambda step: float(init * exp(-rate * _passed(step, steps, staircase)))


def _inverse_time(
    init: float, rate: float, steps: int, staircase: bool = False
) -> Schedule:
    return lambda step: float(init / (1.0 + rate * _passed(step, steps, staircase)))


def _passed(step: int, steps: int, staircase: bool) -> float:
    """How many periods have passed; with a staircase, whole ones."""
    return step // steps if staircase else step / steps


def _linear(init: float, end: float, steps: int) -> Schedule:
    return _polynomial(init, end, steps)


def _polynomial(
    init: float, end: float, steps: int, power: float = 1.0, cycle: bool = False
) -> Schedule:
    def at(step: int) -> float:
        # A cycle's period grows to the next multiple that has not been passed.
        periods = max(1, -(-step // steps)) if cycle else 1
        left = 1.0 - min(step, periods * steps) / (periods * steps)
        return float((init - end) * left**power + end)

    return at


def _cosine(init: float, steps: int, alpha: float = 0.0) -> Schedule:
    def at(step: int) -> float:
        decay = 0.5 * (1.0 + cos(pi * min(step, steps) / steps))
        return float(init * ((1.0 - alpha) * decay + alpha))

    return at


def _piecewise(boundaries: Sequence[int], values: Sequence[float]) -> Schedule:
    return lambda step: float(values[bisect_right(boundaries, step)])


def _noam(size: int, warmup: int, factor: float = 1.0) -> Schedule:
    def at(step: int) -> float:
        n = step + 1
        return float(factor * size**-0.5 * min(n**-0.5, n * warmup**-1.5))

    return at


def _warmup(steps: int, start: float, then: Schedule) -> Schedule:
    peak = then(0)

    def at(step: int) -> float:
        if step < steps:
            return float(start + (peak - start) * (step / steps))
        return then(step - steps)

    return at


def _linear_scaling(
    batch: int, then: Schedule, base_batch: int = 256, warmup: int = 0
) -> Schedule:
    def scaled(step: int) -> float:
        return batch / base_batch * then(step)

    return _warmup(warmup, then(0), scaled)


_BUILDERS: dict[str, Callable[..., Schedule]] = {
    "exponential": _exponential,
    "natural_exp": _natural_exp,
    "inverse_time": _inverse_time,
    "linear": _linear,
    "polynomial": _polynomial,
    "cosine": _cosine,
    "piecewise": _piecewise,
    "noam": _noam,
}
