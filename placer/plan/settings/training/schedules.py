"""Learning-rate schedules: the forms that a spec may write, and their checks.

`placer.tables.learning_rate` computes the learning rates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

from placer.plan.settings.checks import (
    Check,
    accept,
    check_flag,
    check_mapping,
    check_real,
    check_whole,
    describe_unknown,
    describe_value,
)


@dataclass(frozen=True, slots=True)
class Form:
    """One schedule: how it is written, and the check of each of its keys."""

    text: str
    required: Mapping[str, Check]
    optional: Mapping[str, Check] = field(default_factory=dict)


def check(spec: object) -> str | None:
    """Check a learning rate or schedule as written in a spec; return what is wrong."""
    if not isinstance(spec, Mapping):
        problem = check_real(spec, minimum=0.0)
        if problem and not isinstance(spec, int | float):
            return (
                f"a learning rate is a number or a schedule, not {describe_value(spec)}"
            )
        return f"a learning rate {problem}" if problem else None
    if len(spec) != 1:
        return f"a schedule has one name, not {len(spec)}"
    ((name, body),) = spec.items()
    if name not in FORMS:
        return describe_unknown(name, FORMS, "schedule")
    form = FORMS[name]
    if not isinstance(body, Mapping):
        return f"'{name}' takes a mapping, not {describe_value(body)}: {form.text}"
    problem = check_mapping(body, form.required, form.optional)
    if not problem and "then" in body and (wrong := check(body["then"])):
        problem = f"in 'then': {wrong}"
    if not problem:
        problem = _find_idle(body)
    if not problem and name == "piecewise":
        problem = _check_piecewise(body["boundaries"], body["values"])
    return f"schedule '{name}': {problem}" if problem else None


def _find_idle(body: Mapping[str, Any]) -> str | None:
    """Return which key of a schedule has no effect beside the others, or None."""
    if body.get("staircase") and body["steps"] == 1:
        return "'staircase' has no effect: with steps: 1 each step is a stair"
    if "end" in body and body["init"] == body["end"]:
        for key, default in (("power", 1), ("cycle", False)):
            if body.get(key, default) != default:
                return f"'{key}' has no effect: 'init' and 'end' are equal"
    return None


def is_always_zero(spec: Any) -> bool:
    """Whether a learning rate that passed `check` is 0 in every step.

    >>> is_always_zero({"warmup": {"steps": 5, "then": 0.0}})
    True
    """
    if not isinstance(spec, Mapping):
        return bool(spec == 0)
    ((name, body),) = spec.items()
    match name:
        case "linear" | "polynomial":
            return {body["init"], body["end"]} == {0}
        case "piecewise":
            return all(rate == 0 for rate in body["values"])
        case "warmup":
            return is_always_zero(body.get("from", 0)) and is_always_zero(body["then"])
        case "linear_scaling":
            return is_always_zero(body["then"])
        case "noam":
            return False
    return bool(body["init"] == 0)


def fill_batch(spec: Any, batch: int) -> Any:
    """Return a schedule that passed `check`, with the global batch filled in."""
    if not isinstance(spec, Mapping):
        return spec
    ((name, body),) = spec.items()
    if "then" in body:
        body = {**body, "then": fill_batch(body["then"], batch)}
    if name == "linear_scaling":
        body = {"batch": batch, **body}
    return {name: body}


_rate = partial(check_real, minimum=0.0)
_positive = partial(check_real, above=0.0)
_count = partial(check_whole, minimum=0)
_positive_count = partial(check_whole, minimum=1)


def _check_list(value: object, what: str, check: Check) -> str | None:
    if not isinstance(value, list | tuple):
        return f"must be a list, not {describe_value(value)}"
    problems = (
        f"lists {what} that {wrong}" for each in value if (wrong := check(each))
    )
    return next(problems, None)


def _rates(value: object) -> str | None:
    return _check_list(value, "a rate", _rate)


def _boundaries(value: Any) -> str | None:
    if problem := _check_list(value, "a step", _positive_count):
        return problem
    for before, step in pairwise(value):
        if step <= before:
            return f"must increase, and {step} comes after {before}"
    return None


def _check_piecewise(boundaries: list[int], values: list[float]) -> str | None:
    if len(values) == len(boundaries) + 1:
        return None
    steps, rates = len(boundaries), len(values)
    return (
        f"'values' must have one item more than 'boundaries', not {rates} for {steps}"
    )


FORMS: dict[str, Form] = {
    "exponential": Form(
        "{exponential: {init, rate, steps, staircase: false}}:"
        " init * rate ** (step / steps)",
        {"init": _rate, "rate": _positive, "steps": _positive_count},
        {"staircase": check_flag},
    ),
    "natural_exp": Form(
        "{natural_exp: {init, rate, steps, staircase: false}}:"
        " init * exp(-rate * step / steps)",
        {"init": _rate, "rate": _rate, "steps": _positive_count},
        {"staircase": check_flag},
    ),
    "inverse_time": Form(
        "{inverse_time: {init, rate, steps, staircase: false}}:"
        " init / (1 + rate * step / steps)",
        {"init": _rate, "rate": _rate, "steps": _positive_count},
        {"staircase": check_flag},
    ),
    "linear": Form(
        "{linear: {init, end, steps}}: a straight line from init to end",
        {"init": _rate, "end": _rate, "steps": _positive_count},
    ),
    "polynomial": Form(
        "{polynomial: {init, end, steps, power: 1, cycle: false}}:"
        " end + (init - end) * (1 - step / steps) ** power",
        {"init": _rate, "end": _rate, "steps": _positive_count},
        {"power": _positive, "cycle": check_flag},
    ),
    "cosine": Form(
        "{cosine: {init, steps, alpha: 0}}: half a cosine period from"
        " init to alpha * init (Loshchilov and Hutter 2017)",
        {"init": _rate, "steps": _positive_count},
        {"alpha": _rate},
    ),
    "piecewise": Form(
        "{piecewise: {boundaries: [STEP, …], values: [RATE, …]}}: the first rate"
        " before the first boundary, the second from that step on, and so on",
        {"boundaries": _boundaries, "values": _rates},
    ),
    "noam": Form(
        "{noam: {size, warmup, factor: 1}}: factor * size ** -0.5 * min(n ** -0.5,"
        " n * warmup ** -1.5), where n is the step, from 1 (Vaswani et al. 2017)",
        {"size": _positive_count, "warmup": _positive_count},
        {"factor": _positive},
    ),
    "warmup": Form(
        "{warmup: {steps, from: 0.0, then: SCHEDULE}}: a straight line from `from`"
        " to the first rate of `then`, whose steps count from the end of the warm-up",
        {"steps": _positive_count, "then": accept},
        {"from": _rate},
    ),
    "linear_scaling": Form(
        "{linear_scaling: {base_batch: 256, warmup: 0, then: SCHEDULE}}:"
        " batch / base_batch times `then`, after a straight line of `warmup` steps from"
        " the first rate of `then` (Goyal et al. 2017); `batch` defaults to the global"
        " batch",
        {"then": accept},
        {"batch": _positive_count, "base_batch": _positive_count, "warmup": _count},
    ),
}
"""The schedules by name. The first update is step 0."""
