"""Optimizer rules as the compiler knows them: slots, hyperparameters, cost.

The updates themselves stand in `placer.runtime.rules`. The learning rate is no
hyperparameter of a rule: it comes with each step from a schedule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from placer.graph.scalars import real, unknown


@dataclass(frozen=True, slots=True)
class Hyper:
    """One hyperparameter: its type, default, meaning and half-open range [least, below)."""

    type: type
    default: float
    doc: str
    least: float = 0.0
    below: float | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """An elementwise update rule.

    `slots` names the state kept per element beside the value, each of the table's
    dtype and zero at first; `flops` is the work of one update of one element.
    """

    name: str
    doc: str
    slots: tuple[str, ...]
    hyper: Mapping[str, Hyper]
    flops: int


_RULES = {
    rule.name: rule
    for rule in (
        Rule("sgd", "value - lr * gradient", (), {}, flops=2),
        Rule(
            "momentum",
            "trace = momentum * trace + gradient; value - lr * trace (Polyak 1964)",
            ("trace",),
            {"momentum": Hyper(float, 0.9, "decay of the trace", below=1.0)},
            flops=4,
        ),
        Rule(
            "adam",
            "moments with bias correction (Kingma and Ba 2015)",
            ("mu", "nu"),
            {
                "b1": Hyper(float, 0.9, "decay of the first moment", below=1.0),
                "b2": Hyper(float, 0.999, "decay of the second moment", below=1.0),
                "eps": Hyper(float, 1e-8, "added to the root of the second moment"),
            },
            flops=14,
        ),
    )
}


def names() -> tuple[str, ...]:
    """The names of all rules, sorted."""
    return tuple(sorted(_RULES))


def find(name: str) -> Rule:
    """The rule of that name; KeyError where there is none (`check` says it nicely)."""
    return _RULES[name]


def check(name: object, hyper: Mapping[str, object]) -> str | None:
    """What is wrong with a rule's name or its hyperparameters, or None."""
    if name not in _RULES:
        return unknown(name, _RULES, "optimizer")
    declared = _RULES[str(name)].hyper
    for key, value in hyper.items():
        if key not in declared:
            if not declared:
                return f"optimizer '{name}' has no hyperparameter, '{key}' was given"
            return unknown(key, declared, f"hyperparameter of '{name}'")
        problem = real(value, least=declared[key].least)
        if problem:
            return f"'{key}' {problem}"
        below = declared[key].below
        if below is not None and float(value) >= below:  # type: ignore[arg-type]
            return f"'{key}' must be less than {below:g}, not {value}"
    return None


def complete(name: str, hyper: Mapping[str, Any]) -> dict[str, float]:
    """All hyperparameters of a rule: those given, the others at their defaults."""
    return {
        key: declared.type(hyper.get(key, declared.default))
        for key, declared in find(name).hyper.items()
    }
