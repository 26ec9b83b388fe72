"""Learning-rate schedules: functions from the step to a learning rate, in float64.

The first update is step 0, as in optax. `exponential`, `linear`, `polynomial` and
`cosine` equal `optax.exponential_decay`, `linear_schedule`, `polynomial_schedule` and
`cosine_decay_schedule`. `piecewise` equals `optax.join_schedules` of constants, and
`warmup` equals it for a linear schedule followed by another one. `noam` is the schedule
of Vaswani et al. 2017, `linear_scaling` that of Goyal et al. 2017.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from math import cos, exp, pi
from typing import Any

from placer.errors import PlacerError
from placer.plan.settings.training.schedules import check

Schedule = Callable[[int], float]
Builder = Callable[..., Schedule]


def build_schedule(spec: float | Mapping[str, Any]) -> Schedule:
    """Return the function from step to learning rate that a spec describes.

    `spec` is a number, or one of the forms of `placer.plan.settings.training.schedules.FORMS` with its
    batch filled in. Raises PlacerError for anything else.
    """
    if problem := check(spec):
        raise PlacerError(problem)
    return _build(spec)


def _build(spec: float | Mapping[str, Any]) -> Schedule:
    if not isinstance(spec, Mapping):
        rate = float(spec)
        return lambda step: rate
    ((name, body),) = spec.items()
    if name == "linear_scaling" and "batch" not in body:
        raise PlacerError("schedule 'linear_scaling': 'batch' is missing")
    if "then" in body:
        body = {**body, "then": _build(body["then"])}
    return _BUILDERS[name](**body)


def _decaying(rate_after: Callable[[float, float, float], float]) -> Builder:
    """Return a builder of schedules that decay in periods of `steps` steps.

    `rate_after(init, rate, periods)` is the learning rate after so many periods; with
    `staircase`, only whole ones count.
    """

    def build(
        init: float, rate: float, steps: int, staircase: bool = False
    ) -> Schedule:
        def rate_at(step: int) -> float:
            periods = step // steps if staircase else step / steps
            return float(rate_after(init, rate, periods))

        return rate_at

    return build


def _polynomial(
    init: float, end: float, steps: int, power: float = 1.0, cycle: bool = False
) -> Schedule:
    def rate_at(step: int) -> float:
        # With `cycle`, the period is the smallest multiple of `steps` that the step has
        # not passed, so the rate jumps up again at the end of each.
        periods = max(1, -(-step // steps)) if cycle else 1
        remaining = 1.0 - min(step, periods * steps) / (periods * steps)
        return float((init - end) * remaining**power + end)

    return rate_at


def _cosine(init: float, steps: int, alpha: float = 0.0) -> Schedule:
    def rate_at(step: int) -> float:
        decay = 0.5 * (1.0 + cos(pi * min(step, steps) / steps))
        return float(init * ((1.0 - alpha) * decay + alpha))

    return rate_at


def _piecewise(boundaries: Sequence[int], values: Sequence[float]) -> Schedule:
    return lambda step: float(values[bisect_right(boundaries, step)])


def _noam(size: int, warmup: int, factor: float = 1.0) -> Schedule:
    def rate_at(step: int) -> float:
        number = step + 1
        return float(factor * size**-0.5 * min(number**-0.5, number * warmup**-1.5))

    return rate_at


def _warmup(steps: int, then: Schedule, **rates: float) -> Schedule:
    start, peak = rates.get("from", 0.0), then(0)  # `from` is a keyword of Python

    def rate_at(step: int) -> float:
        if step < steps:
            return float(start + (peak - start) * (step / steps))
        return then(step - steps)

    return rate_at


def _linear_scaling(
    batch: int, then: Schedule, base_batch: int = 256, warmup: int = 0
) -> Schedule:
    def scaled_rate_at(step: int) -> float:
        return batch / base_batch * then(step)

    return _warmup(warmup, scaled_rate_at, **{"from": then(0)})


_BUILDERS: dict[str, Builder] = {
    "exponential": _decaying(lambda init, rate, periods: init * rate**periods),
    "natural_exp": _decaying(lambda init, rate, periods: init * exp(-rate * periods)),
    "inverse_time": _decaying(
        lambda init, rate, periods: init / (1.0 + rate * periods)
    ),
    "linear": _polynomial,
    "polynomial": _polynomial,
    "cosine": _cosine,
    "piecewise": _piecewise,
    "noam": _noam,
    "warmup": _warmup,
    "linear_scaling": _linear_scaling,
}
