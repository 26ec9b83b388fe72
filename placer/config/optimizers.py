"""Optimizer rules as the compiler knows them: slots, hyperparameters, cost.

The mathematics and the defaults are those of optax. The updates themselves stand in
`placer.tables.rules`. The learning rate is no hyperparameter of a rule: it comes with
each step from a schedule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from placer.config.checks import real, shown, unknown


@dataclass(frozen=True, slots=True)
class Hyper:
    """One hyperparameter: float or bool, its default and meaning; a number lies in the
    half-open range [least, below)."""

    type: type
    default: float
    doc: str
    least: float = 0.0
    below: float | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """An elementwise update rule.

    `slots` names the state kept per element beside the value, each of the table's
    dtype; `begins` names the hyperparameter that a slot holds at first, where that is
    not zero; `needs` the one without which a slot is not kept. `flops` is the work of
    one update of one element.

    A rule with a `direction` has two stages. The first makes a direction of the
    gradient; the second follows it by the parameter's `trust_ratio`, for which the
    norms of the whole parameter must be known.
    """

    name: str
    doc: str
    slots: tuple[str, ...]
    hyper: Mapping[str, Hyper]
    flops: int
    begins: Mapping[str, str] = field(default_factory=dict)
    needs: Mapping[str, str] = field(default_factory=dict)
    direction: bool = False


_MOMENTUM = Hyper(float, 0.9, "decay of the trace", below=1.0)
_B1 = Hyper(float, 0.9, "decay of the first moment", below=1.0)
_B2 = Hyper(float, 0.999, "decay of the second moment", below=1.0)
_ADAM = {
    "b1": _B1,
    "b2": _B2,
    "eps": Hyper(float, 1e-8, "added to the root of the second moment"),
}


def _decay(default: float) -> dict[str, Hyper]:
    doc = "share of the value added to what is followed, where a parameter decays"
    return {"weight_decay": Hyper(float, default, doc)}


_RULES = {
    rule.name: rule
    for rule in (
        Rule("sgd", "value - lr * gradient", (), {}, flops=2),
        Rule(
            "momentum",
            "trace = momentum * trace + gradient; value - lr * trace (Polyak 1964)",
            ("trace",),
            {"momentum": _MOMENTUM},
            flops=4,
        ),
        Rule(
            "nesterov",
            "momentum that looks one trace ahead: value - lr * (momentum * trace +"
            " gradient) (Nesterov 1983; Sutskever et al. 2013)",
            ("trace",),
            {"momentum": _MOMENTUM},
            flops=6,
        ),
        Rule(
            "adagrad",
            "gradient over the root of the sum of all squares (Duchi et al. 2011)",
            ("sum_of_squares",),
            {
                "initial_accumulator_value": Hyper(
                    float, 0.1, "what the sum of squares begins at"
                ),
                "eps": Hyper(float, 1e-7, "added to the sum of squares"),
            },
            flops=7,
            begins={"sum_of_squares": "initial_accumulator_value"},
        ),
        Rule(
            "rmsprop",
            "gradient over the root of a running mean of squares, centered: of the"
            " variance (Tieleman and Hinton 2012; Graves 2013)",
            ("nu", "mu", "trace"),
            {
                "decay": Hyper(float, 0.9, "decay of the running means", below=1.0),
                "eps": Hyper(float, 1e-8, "added to the mean of squares"),
                "initial_scale": Hyper(
                    float, 0.0, "what the mean of squares begins at"
                ),
                "centered": Hyper(bool, False, "take the squared mean off"),
                "momentum": Hyper(
                    float,
                    0.0,
                    "decay of a trace of the changes; 0 keeps none",
                    below=1.0,
                ),
            },
            flops=9,
            begins={"nu": "initial_scale"},
            needs={"mu": "centered", "trace": "momentum"},
        ),
        Rule(
            "adadelta",
            "gradient times the root of the mean squared change over that of the mean"
            " squared gradient (Zeiler 2012)",
            ("e_g", "e_x"),
            {
                "rho": Hyper(float, 0.9, "decay of both means", below=1.0),
                "eps": Hyper(float, 1e-6, "added to both means"),
            },
            flops=16,
        ),
        Rule(
            "adam",
            "moments with bias correction (Kingma and Ba 2015)",
            ("mu", "nu"),
            _ADAM,
            flops=14,
        ),
        Rule(
            "adamw",
            "adam with decoupled weight decay (Loshchilov and Hutter 2019)",
            ("mu", "nu"),
            {**_ADAM, **_decay(1e-4)},
            flops=16,
        ),
        Rule(
            "adamax",
            "adam by the largest gradient, decayed, in place of the second moment"
            " (Kingma and Ba 2015)",
            ("mu", "nu"),
            {
                "b1": _B1,
                "b2": Hyper(float, 0.999, "decay of the largest gradient", below=1.0),
                "eps": Hyper(float, 1e-8, "added to the gradient's magnitude"),
            },
            flops=11,
        ),
        Rule(
            "nadam",
            "adam with Nesterov's look ahead (Dozat 2016)",
            ("mu", "nu"),
            _ADAM,
            flops=18,
        ),
        Rule(
            "lion",
            "sign of a mean of gradient and moment (Chen et al. 2023)",
            ("mu",),
            {
                "b1": Hyper(float, 0.9, "share of the moment in the mean", below=1.0),
                "b2": Hyper(float, 0.99, "decay of the moment", below=1.0),
                **_decay(1e-3),
            },
            flops=11,
        ),
        Rule(
            "lamb",
            "adam, each parameter's change scaled to the norm of its value"
            " (You et al. 2020)",
            ("mu", "nu"),
            {
                **_ADAM,
                "eps": Hyper(float, 1e-6, "added to the root of the second moment"),
                **_decay(0.0),
            },
            flops=17,
            direction=True,
        ),
        Rule(
            "lars",
            "momentum, each parameter's gradient scaled to the norm of its value"
            " (You et al. 2017)",
            ("trace",),
            {
                "momentum": _MOMENTUM,
                "trust_coefficient": Hyper(float, 1e-3, "factor of the trust ratio"),
                "eps": Hyper(float, 0.0, "added to the gradient's norm"),
                **_decay(0.0),
            },
            flops=7,
            direction=True,
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
        if problem := _value(value, declared[key]):
            return f"'{key}' {problem}"
    return None


def _value(value: object, declared: Hyper) -> str | None:
    if declared.type is bool:
        if isinstance(value, bool):
            return None
        return f"must be true or false, not {shown(value)}"
    if problem := real(value, least=declared.least):
        return problem
    below = declared.below
    if below is not None and float(value) >= below:  # type: ignore[arg-type]
        return f"must be less than {below:g}, not {value}"
    return None


def complete(name: str, hyper: Mapping[str, Any]) -> dict[str, float]:
    """All hyperparameters of a rule: those given, the others at their defaults."""
    return {
        key: declared.type(hyper.get(key, declared.default))
        for key, declared in find(name).hyper.items()
    }


def slots(name: str, hyper: Mapping[str, Any]) -> dict[str, float]:
    """The slots that a rule keeps with these hyperparameters, in order, and the constant
    that each holds at first.

    >>> slots("rmsprop", {"momentum": 0.9})
    {'nu': 0.0, 'trace': 0.0}
    """
    rule, given = find(name), complete(name, hyper)
    return {
        slot: given[rule.begins[slot]] if slot in rule.begins else 0.0
        for slot in rule.slots
        if slot not in rule.needs or given[rule.needs[slot]]
    }


def trust(name: str, hyper: Mapping[str, Any]) -> tuple[float, float]:
    """`coefficient` and `eps` of the trust ratio of a rule with a direction.

    >>> trust("lars", {"eps": 1e-9})
    (0.001, 1e-09)
    """
    given = complete(name, hyper)
    if name == "lars":
        return given["trust_coefficient"], given["eps"]
    assert name == "lamb", name
    return 1.0, 0.0  # its own eps is that of adam
