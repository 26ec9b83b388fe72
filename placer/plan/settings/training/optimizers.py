"""Declarations of the optimizer rules: slots, hyperparameters and cost.

The formulas and the defaults are those of optax; `placer.tables.optimizer_rules` computes the
updates. The learning rate is not a hyperparameter of a rule: each step has a rate from
a schedule (`placer.plan.settings.training.schedules`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from placer.plan.settings.checks import check_flag, check_real, describe_unknown

VALUES: Final = "value"
"""The name of the values of a table, beside those of its slots."""
OF_SEVERAL_NODES: Final = ("shard_state", "all_reduce", "sum")
"""The settings of an optimizer that only one on several nodes can have."""


@dataclass(frozen=True, slots=True)
class Hyperparameter:
    """A hyperparameter: its default, a float or a bool, and its meaning.

    A number must be in the half-open range [0, below).
    """

    default: float
    doc: str
    below: float | None = None

    @property
    def type(self) -> type:
        """The type of its values: float or bool."""
        return type(self.default)

    def check(self, value: object) -> str | None:
        """Return what is wrong with a value, or None."""
        if self.type is bool:
            return check_flag(value)
        return check_real(value, minimum=0.0, below=self.below)


@dataclass(frozen=True, slots=True)
class Rule:
    """The declaration of an update rule.

    `slots` are the names of the state of each element, which has the table's dtype.
    `initial_values` maps a slot to the hyperparameter that is its initial value, if
    that is not zero; `conditions` maps a slot to the hyperparameter that must be
    nonzero for the rule to have the slot. `flops` are those of the update of one
    element.

    A two-phase rule first computes the update direction from the gradient. Its second
    phase applies the direction, multiplied by the parameter's trust ratio, which needs
    the norms of the whole parameter and the whole direction.

    With `begins_at_zero`, the value follows from the slots alone, so that the initial value
    of a parameter must be 0.

    A row-wise rule keeps one of its slots, `row_slot`, once for each row, not for each
    element: the sum over updates of the mean square of the row's gradient, or its running
    mean with `b2` if the rule has that.
    """

    doc: str
    slots: tuple[str, ...]
    hyper: Mapping[str, Hyperparameter]
    flops: int
    initial_values: Mapping[str, str] = field(default_factory=dict)
    conditions: Mapping[str, str] = field(default_factory=dict)
    is_two_phase: bool = False
    row_slot: str = ""
    begins_at_zero: bool = False


_MOMENTUM = Hyperparameter(0.9, "decay of the trace", below=1.0)
_B1 = Hyperparameter(0.9, "decay of the first moment", below=1.0)
_B2 = Hyperparameter(0.999, "decay of the second moment", below=1.0)
_ADAM = {
    "b1": _B1,
    "b2": _B2,
    "eps": Hyperparameter(1e-8, "added to the root of the second moment"),
}


def _decay(default: float) -> dict[str, Hyperparameter]:
    doc = "share of the value added to the update, for parameters with decay"
    return {"weight_decay": Hyperparameter(default, doc)}


DENSE_RULES = {
    "sgd": Rule("stochastic gradient descent: value - lr * gradient", (), {}, flops=2),
    "momentum": Rule(
        "gradient descent with momentum: trace = momentum * trace + gradient;"
        " value - lr * trace (Polyak 1964)",
        ("trace",),
        {"momentum": _MOMENTUM},
        flops=4,
    ),
    "nesterov": Rule(
        "gradient descent with Nesterov momentum: trace as in momentum;"
        " value - lr * (momentum * trace + gradient) (Nesterov 1983; Sutskever et"
        " al. 2013)",
        ("trace",),
        {"momentum": _MOMENTUM},
        flops=6,
    ),
    "adagrad": Rule(
        "the gradient divided by the root of the sum of all squared gradients"
        " (Duchi et al. 2011)",
        ("sum_of_squares",),
        {
            "initial_accumulator_value": Hyperparameter(
                0.1, "initial value of the sum of squares"
            ),
            "eps": Hyperparameter(1e-7, "added to the sum of squares"),
        },
        flops=7,
        initial_values={"sum_of_squares": "initial_accumulator_value"},
    ),
    "rmsprop": Rule(
        "the gradient divided by the root of the running mean of its square, or of"
        " its variance if centered (Tieleman and Hinton 2012; Graves 2013)",
        ("nu", "mu", "trace"),
        {
            "decay": Hyperparameter(0.9, "decay of the running means", below=1.0),
            "eps": Hyperparameter(1e-8, "added to the mean of squares"),
            "initial_scale": Hyperparameter(
                0.0, "initial value of the mean of squares"
            ),
            "centered": Hyperparameter(False, "subtract the squared mean"),
            "momentum": Hyperparameter(
                0.0, "decay of a trace of the changes; 0 for no trace", below=1.0
            ),
        },
        flops=9,
        initial_values={"nu": "initial_scale"},
        conditions={"mu": "centered", "trace": "momentum"},
    ),
    "adadelta": Rule(
        "the gradient, multiplied by the root of the mean squared change and divided"
        " by the root of the mean squared gradient (Zeiler 2012)",
        ("e_g", "e_x"),
        {
            "rho": Hyperparameter(0.9, "decay of both means", below=1.0),
            "eps": Hyperparameter(1e-6, "added to both means"),
        },
        flops=16,
    ),
    "adam": Rule(
        "running means of the gradient and of its square, with bias correction:"
        " value - lr * mu / (sqrt(nu) + eps) (Kingma and Ba 2015)",
        ("mu", "nu"),
        _ADAM,
        flops=14,
    ),
    "adamw": Rule(
        "adam with decoupled weight decay (Loshchilov and Hutter 2019)",
        ("mu", "nu"),
        {**_ADAM, **_decay(1e-4)},
        flops=16,
    ),
    "adamax": Rule(
        "adam with a decayed maximum of the gradient's magnitude instead of the"
        " second moment (Kingma and Ba 2015)",
        ("mu", "nu"),
        {
            "b1": _B1,
            "b2": Hyperparameter(0.999, "decay of the largest gradient", below=1.0),
            "eps": Hyperparameter(1e-8, "added to the gradient's magnitude"),
        },
        flops=11,
    ),
    "nadam": Rule(
        "adam with Nesterov momentum (Dozat 2016)", ("mu", "nu"), _ADAM, flops=18
    ),
    "lion": Rule(
        "the sign of a weighted mean of the moment and the gradient (Chen et al. 2023)",
        ("mu",),
        {
            "b1": Hyperparameter(0.9, "share of the moment in the mean", below=1.0),
            "b2": Hyperparameter(0.99, "decay of the moment", below=1.0),
            **_decay(1e-3),
        },
        flops=11,
    ),
    "lamb": Rule(
        "adam, with the update of each parameter scaled by its trust ratio"
        " (You et al. 2020)",
        ("mu", "nu"),
        {
            **_ADAM,
            "eps": Hyperparameter(1e-6, "added to the root of the second moment"),
            **_decay(0.0),
        },
        flops=17,
        is_two_phase=True,
    ),
    "lars": Rule(
        "momentum, with the gradient of each parameter scaled by its trust ratio"
        " (You et al. 2017)",
        ("trace",),
        {
            "momentum": _MOMENTUM,
            "trust_coefficient": Hyperparameter(1e-3, "factor of the trust ratio"),
            "eps": Hyperparameter(0.0, "added to the gradient's norm"),
            **_decay(0.0),
        },
        flops=7,
        is_two_phase=True,
    ),
    "ftrl": Rule(
        "follow the regularized leader, with a learning rate for each element: weights"
        " that gradients do not move by more than l1 are 0 (McMahan et al. 2013)",
        ("linear", "sum_of_squares"),
        {
            "l1": Hyperparameter(0.0, "weight of the absolute values"),
            "l2": Hyperparameter(0.0, "weight of half of the squares"),
            "beta": Hyperparameter(0.0, "added to the root of the sum of squares"),
            "initial_accumulator_value": Hyperparameter(
                0.1, "initial value of the sum of squares"
            ),
        },
        flops=16,
        initial_values={"sum_of_squares": "initial_accumulator_value"},
        begins_at_zero=True,
    ),
}
"""The update rules that any parameter can have, by name."""

_ADAGRAD_EPS = Hyperparameter(1e-7, "added to the sum of squares")
ROW_RULES = {
    "rowwise_adagrad": Rule(
        "adagrad with one sum of squares for each row: that of the mean squares of its"
        " gradients",
        ("sum_of_squares",),
        {
            "initial_accumulator_value": Hyperparameter(
                0.1, "initial value of the sum of squares"
            ),
            "eps": _ADAGRAD_EPS,
        },
        flops=7,
        initial_values={"sum_of_squares": "initial_accumulator_value"},
        row_slot="sum_of_squares",
    ),
    "shared_adagrad": Rule(
        "PaddlePaddle's adagrad with one sum of squares G for each row: value - lr *"
        " gradient * sqrt(initial_g2sum / (initial_g2sum + G)), then G grows by the"
        " mean square of the gradient",
        ("g2sum",),
        {"initial_g2sum": Hyperparameter(3.0, "added to the sum of squares")},
        flops=7,
        row_slot="g2sum",
    ),
    "rowwise_adam": Rule(
        "adam with one second moment for each row: that of the mean squares of its"
        " gradients",
        ("mu", "nu"),
        _ADAM,
        flops=14,
        row_slot="nu",
    ),
}
"""The row-wise rules, which only sparse tables have."""
RULES: dict[str, Rule] = {**DENSE_RULES, **ROW_RULES}
"""The update rules by name."""


def check(name: object, hyper: Mapping[str, object]) -> str | None:
    """Return what is wrong with a rule's name or its hyperparameters, or None."""
    if name not in RULES:
        return describe_unknown(name, RULES, "optimizer")
    declared = RULES[str(name)].hyper
    for key, value in hyper.items():
        if key not in declared:
            if not declared:
                return f"optimizer '{name}' has no hyperparameters, not '{key}'"
            return describe_unknown(key, declared, f"hyperparameter of '{name}'")
        if problem := declared[key].check(value):
            return f"'{key}' {problem}"
    return None


def complete(name: str, hyper: Mapping[str, Any]) -> dict[str, float]:
    """Return all hyperparameters of a rule: `hyper`, and the defaults of the others."""
    return {
        key: declared.type(hyper.get(key, declared.default))
        for key, declared in RULES[name].hyper.items()
    }


def slots(name: str, hyper: Mapping[str, Any]) -> dict[str, float]:
    """Return the slots that a rule has with these hyperparameters, with initial values.

    In the order of the declaration.

    >>> slots("rmsprop", {"momentum": 0.9})
    {'nu': 0.0, 'trace': 0.0}
    """
    rule, values = RULES[name], complete(name, hyper)
    return {
        slot: values[rule.initial_values[slot]] if slot in rule.initial_values else 0.0
        for slot in rule.slots
        if slot not in rule.conditions or values[rule.conditions[slot]]
    }


def trust_ratio_constants(name: str, hyper: Mapping[str, Any]) -> tuple[float, float]:
    """Return the coefficient and the eps of the trust ratio of a two-phase rule.

    >>> trust_ratio_constants("lars", {"eps": 1e-9})
    (0.001, 1e-09)
    """
    values = complete(name, hyper)
    if name == "lars":
        return values["trust_coefficient"], values["eps"]
    assert name == "lamb", name
    return 1.0, 0.0  # the eps of lamb is that of its adam direction


def row_slot(name: str) -> str:
    """Return the slot that a rule keeps once for each row, or "" if it has none."""
    return RULES[name].row_slot


def nearest_dense(name: str) -> str:
    """Return the rule with a slot for each element that a row-wise rule simplifies."""
    return "adam" if "mu" in RULES[name].slots else "adagrad"


def check_init(rule: str, init: Any) -> str | None:
    """Return what is wrong with the initializer of a parameter for its rule, as a
    predicate of the rule, such as `computes …`; None if nothing is."""
    if not RULES[rule].begins_at_zero:
        return None
    if init == "zeros" or (isinstance(init, Mapping) and init.get("constant") == 0):
        return None
    return f"computes a value from its slots, so that it begins at 0, not {init}"


def check_outer(name: str) -> tuple[str, str] | None:
    """Return why servers cannot have a rule as their outer optimizer, and a hint; None
    if they can."""
    what = f"'{name}' cannot be an outer optimizer: it"
    if RULES[name].is_two_phase:
        why = "needs norms of whole parameters, and servers have blocks of them"
        return f"{what} {why}", "nesterov, sgd or adam need none"
    if row_slot(name):
        why = "is a rule of sparse tables, which have no outer optimizer"
        return f"{what} {why}", f"use {nearest_dense(name)}"
    return None
