"""Learning-rate schedules: the forms that a spec may write.

The numbers themselves are computed by `placer.runtime.schedules`.
"""

from __future__ import annotations

from collections.abc import Mapping

from placer.graph.scalars import keys, real, shown, unknown, whole

FORMS: dict[str, str] = {
    "exponential": "{exponential: {init, rate, steps, staircase: false}}:"
    " init * rate ** (step / steps)",
    "cosine": "{cosine: {init, steps, alpha: 0}}: half a cosine from init to"
    " alpha * init (Loshchilov and Hutter 2017)",
    "warmup": "{warmup: {steps, from: 0.0, then: SCHEDULE}}: a straight line up to the"
    " first value of `then`, which is counted from the end of the warm-up",
}
"""The forms beside a plain number; the step counts from 0 at the first update."""


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
    if not isinstance(body, Mapping):
        return f"'{name}' takes a mapping, not {shown(body)}: {FORMS[name]}"
    match name:
        case "exponential":
            problem = _exponential(body)
        case "cosine":
            problem = _cosine(body)
        case _:
            problem = _warmup(body)
    return f"schedule '{name}': {problem}" if problem else None


def _exponential(body: Mapping[str, object]) -> str | None:
    staircase = body.get("staircase", False)
    return (
        keys(body, ("init", "rate", "steps"), ("staircase",))
        or _named("init", real(body["init"], least=0.0))
        or _named("rate", real(body["rate"], above=0.0))
        or _named("steps", whole(body["steps"], least=1))
        or _named(
            "staircase",
            None
            if isinstance(staircase, bool)
            else f"must be true or false, not {shown(staircase)}",
        )
    )


def _cosine(body: Mapping[str, object]) -> str | None:
    return (
        keys(body, ("init", "steps"), ("alpha",))
        or _named("init", real(body["init"], least=0.0))
        or _named("steps", whole(body["steps"], least=1))
        or _named("alpha", real(body.get("alpha", 0), least=0.0))
    )


def _warmup(body: Mapping[str, object]) -> str | None:
    return (
        keys(body, ("steps", "then"), ("from",))
        or _named("steps", whole(body["steps"], least=1))
        or _named("from", real(body.get("from", 0.0), least=0.0))
        or _inner(body["then"])
    )


def _inner(then: object) -> str | None:
    problem = check(then)
    return f"in 'then': {problem}" if problem else None


def _named(key: str, problem: str | None) -> str | None:
    return f"'{key}' {problem}" if problem else None
