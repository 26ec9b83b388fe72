"""Learning-rate schedules: the forms that a spec may write.

The numbers themselves are computed by `placer.tables.learning_rate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from placer.config.checks import keys, real, shown, unknown, whole

Check = Callable[[object], str | None]


@dataclass(frozen=True, slots=True)
class Form:
    """One schedule: how it is written, and what each of its keys must be."""

    text: str
    required: Mapping[str, Check]
    optional: Mapping[str, Check] = field(default_factory=dict)


def check(spec: object) -> str | None:
    """What is wrong with a schedule as a spec writes it, or None."""
    if not isinstance(spec, Mapping):
        problem = real(spec, least=0.0)
        if problem and not isinstance(spec, int | float):
            return f"a learning rate is a number or a schedule, not {shown(spec)}"
        return f"a learning rate {problem}" if problem else None
    if len(spec) != 1:
        return f"a schedule has one name, here are {len(spec)}"
    ((name, body),) = spec.items()
    if name not in FORMS:
        return unknown(name, FORMS, "schedule")
    form = FORMS[name]
    if not isinstance(body, Mapping):
        return f"'{name}' takes a mapping, not {shown(body)}: {form.text}"
    problem = keys(body, form.required, form.optional)
    for key, check_key in {**form.required, **form.optional}.items():
        if not problem and key in body and (wrong := check_key(body[key])):
            problem = f"in 'then': {wrong}" if key == "then" else f"'{key}' {wrong}"
    if not problem and name == "piecewise":
        problem = _as_many(body["boundaries"], body["values"])
    return f"schedule '{name}': {problem}" if problem else None


def of_batch(spec: Any, batch: int) -> Any:
    """A schedule that `check` allows, with the global batch where it leaves it out."""
    if not isinstance(spec, Mapping):
        return spec
    ((name, body),) = spec.items()
    if "then" in body:
        body = {**body, "then": of_batch(body["then"], batch)}
    if name == "linear_scaling":
        body = {"batch": batch, **body}
    return {name: body}


def _rate(value: object) -> str | None:
    return real(value, least=0.0)


def _positive(value: object) -> str | None:
    return real(value, above=0.0)


def _length(value: object) -> str | None:
    return whole(value, least=1)


def _perhaps_none(value: object) -> str | None:
    return whole(value, least=0)


def _flag(value: object) -> str | None:
    known = isinstance(value, bool)
    return None if known else f"must be true or false, not {shown(value)}"


def _rates(value: object) -> str | None:
    if not isinstance(value, list | tuple):
        return f"must be a list, not {shown(value)}"
    for rate in value:
        if problem := _rate(rate):
            return f"lists a rate that {problem}"
    return None


def _boundaries(value: object) -> str | None:
    if not isinstance(value, list | tuple):
        return f"must be a list, not {shown(value)}"
    before = 0
    for step in value:
        if problem := _length(step):
            return f"lists a step that {problem}"
        if step <= before:
            return f"must rise, and {step} comes after {before}"
        before = step
    return None


def _as_many(boundaries: list[int], values: list[float]) -> str | None:
    if len(values) == len(boundaries) + 1:
        return None
    steps, rates = len(boundaries), len(values)
    return (
        f"'values' must have one more than 'boundaries', here are {rates} and {steps}"
    )


FORMS: dict[str, Form] = {
    "exponential": Form(
        "{exponential: {init, rate, steps, staircase: false}}:"
        " init * rate ** (step / steps)",
        {"init": _rate, "rate": _positive, "steps": _length},
        {"staircase": _flag},
    ),
    "natural_exp": Form(
        "{natural_exp: {init, rate, steps, staircase: false}}:"
        " init * exp(-rate * step / steps)",
        {"init": _rate, "rate": _rate, "steps": _length},
        {"staircase": _flag},
    ),
    "inverse_time": Form(
        "{inverse_time: {init, rate, steps, staircase: false}}:"
        " init / (1 + rate * step / steps)",
        {"init": _rate, "rate": _rate, "steps": _length},
        {"staircase": _flag},
    ),
    "linear": Form(
        "{linear: {init, end, steps}}: a straight line from init to end",
        {"init": _rate, "end": _rate, "steps": _length},
    ),
    "polynomial": Form(
        "{polynomial: {init, end, steps, power: 1, cycle: false}}:"
        " end + (init - end) * (1 - step / steps) ** power",
        {"init": _rate, "end": _rate, "steps": _length},
        {"power": _positive, "cycle": _flag},
    ),
    "cosine": Form(
        "{cosine: {init, steps, alpha: 0}}: half a cosine from init to"
        " alpha * init (Loshchilov and Hutter 2017)",
        {"init": _rate, "steps": _length},
        {"alpha": _rate},
    ),
    "piecewise": Form(
        "{piecewise: {boundaries: [STEP, …], values: [RATE, …]}}: the first value"
        " before the first boundary, the next one from it on, and so forth",
        {"boundaries": _boundaries, "values": _rates},
    ),
    "noam": Form(
        "{noam: {size, warmup, factor: 1}}: factor * size ** -0.5 * min(n ** -0.5,"
        " n * warmup ** -1.5), n the step from 1 (Vaswani et al. 2017)",
        {"size": _length, "warmup": _length},
        {"factor": _positive},
    ),
    "warmup": Form(
        "{warmup: {steps, from: 0.0, then: SCHEDULE}}: a straight line up to the"
        " first value of `then`, which is counted from the end of the warm-up",
        {"steps": _length, "then": check},
        {"from": _rate},
    ),
    "linear_scaling": Form(
        "{linear_scaling: {base_batch: 256, warmup: 0, then: SCHEDULE}}:"
        " batch / base_batch times `then`, after a straight line of `warmup` steps up"
        " from the first value of `then` (Goyal et al. 2017); `batch` is the global"
        " one if it is not given",
        {"then": check},
        {"batch": _length, "base_batch": _length, "warmup": _perhaps_none},
    ),
}
"""The forms beside a plain number; the step counts from 0 at the first update."""
