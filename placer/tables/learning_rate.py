"""Learning-rate schedules: functions from the step to a learning rate, in float64.

The first update is step 0, as in optax. `exponential`, `linear`, `polynomial` and `cosine`
equal `optax.exponential_decay`, `linear_schedule`, `polynomial_schedule` and
`cosine_decay_schedule`. `piecewise` equals `optax.join_schedules` of constants. `warmup`
equals `optax.join_schedules` of a linear schedule and another schedule. `noam` is from
Vaswani et al. 2017, and `linear_scaling` from Goyal et al. 2017.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from math import cos, exp, pi

from placer.errors import PlacerError
from placer.plan.settings.training import schedules
from placer.plan.settings.training.schedules import Rate

Schedule = Callable[[int], float]


def build_schedule(rate: Rate) -> Schedule:
    """Return the function from step to learning rate for a number or a schedule.

    Raises:
        PlacerError: if the schedule is `linear_scaling` and its batch is missing.
    """
    if not isinstance(rate, schedules.Schedule):
        return lambda step: rate
    match rate.form:
        case schedules.Decaying() as form:
            return _decaying(form)
        case schedules.Linear() as form:
            return _polynomial(form)
        case schedules.Cosine() as form:
            return _cosine(form)
        case schedules.Piecewise(boundaries, values):
            return lambda step: values[bisect_right(boundaries, step)]
        case schedules.Noam() as form:
            return _noam(form)
        case schedules.Warmup() as form:
            return _warmup(form.steps, form.from_, build_schedule(form.then))
        case schedules.LinearScaling() as form:
            return _linear_scaling(form)
    raise AssertionError(rate)


def _decaying(form: schedules.Decaying) -> Schedule:
    init, rate, steps = form.init, form.rate, form.steps

    def rate_at(step: int) -> float:
        periods = step // steps if form.staircase else step / steps
        match form:
            case schedules.Exponential():
                return float(init * rate**periods)
            case schedules.NaturalExp():
                return init * exp(-rate * periods)
        return init / (1.0 + rate * periods)

    return rate_at


def _polynomial(form: schedules.Linear) -> Schedule:
    init, end, steps = form.init, form.end, form.steps
    power, cycle = 1.0, False
    if isinstance(form, schedules.Polynomial):
        power, cycle = form.power, form.cycle

    def rate_at(step: int) -> float:
        # With `cycle`, the period is the smallest multiple of `steps` that is not below the
        # step. The rate therefore jumps up again after each multiple.
        periods = max(1, -(-step // steps)) if cycle else 1
        remaining = 1.0 - min(step, periods * steps) / (periods * steps)
        return float((init - end) * remaining**power + end)

    return rate_at


def _cosine(form: schedules.Cosine) -> Schedule:
    def rate_at(step: int) -> float:
        decay = 0.5 * (1.0 + cos(pi * min(step, form.steps) / form.steps))
        return form.init * ((1.0 - form.alpha) * decay + form.alpha)

    return rate_at


def _noam(form: schedules.Noam) -> Schedule:
    def rate_at(step: int) -> float:
        number = step + 1
        scale = min(number**-0.5, number * form.warmup**-1.5)
        return float(form.factor * form.size**-0.5 * scale)

    return rate_at


def _warmup(steps: int, start: float, then: Schedule) -> Schedule:
    peak = then(0)

    def rate_at(step: int) -> float:
        if step < steps:
            return start + (peak - start) * (step / steps)
        return then(step - steps)

    return rate_at


def _linear_scaling(form: schedules.LinearScaling) -> Schedule:
    if form.batch is None:
        raise PlacerError("schedule 'linear_scaling': 'batch' is missing")
    factor, then = form.batch / form.base_batch, build_schedule(form.then)
    return _warmup(form.warmup, then(0), lambda step: factor * then(step))
