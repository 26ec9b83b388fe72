"""The optimizer rules: hyperparameters, slots and cost.

The formulas and the defaults are those of optax; `placer.tables.optimizer_rules` computes the
updates. The learning rate is not a hyperparameter of a rule: each step has a rate from
a schedule (`placer.plan.settings.training.schedules`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec import Meta, Struct, inspect, structs, to_builtins

from placer.errors import did_you_mean
from placer.plan.settings.fields import doc
from placer.plan.settings.mistake import Mistake
from placer.plan.settings.training.initializers import Initializer

VALUES: Final = "value"
"""The name of the values of a table, beside those of its slots."""
OF_SEVERAL_NODES: Final = ("shard_state", "all_reduce", "sum")
"""The settings of an optimizer that only one on several nodes can have."""

NonNegative = Annotated[float, Meta(ge=0)]
Decay = Annotated[float, Meta(ge=0, lt=1)]


class Rule(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An update rule with its hyperparameters, which are its fields. Its docstring says
    what it computes, its tag is its name.

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

    slots: ClassVar[tuple[str, ...]] = ()
    flops: ClassVar[int]
    initial_values: ClassVar[Mapping[str, str]] = {}
    conditions: ClassVar[Mapping[str, str]] = {}
    is_two_phase: ClassVar[bool] = False
    row_slot: ClassVar[str] = ""
    begins_at_zero: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The name of the rule, such as `adam`."""
        return name_of(type(self))

    @property
    def hyper(self) -> dict[str, float]:
        """All hyperparameters by name."""
        return structs.asdict(self)

    @property
    def first_slots(self) -> dict[str, float]:
        """The slots that the rule has with these hyperparameters, with initial values, in
        the order of the declaration.

        >>> RMSProp(momentum=0.9).first_slots
        {'nu': 0.0, 'trace': 0.0}
        """
        hyper = self.hyper
        return {
            slot: hyper[self.initial_values[slot]]
            if slot in self.initial_values
            else 0.0
            for slot in self.slots
            if slot not in self.conditions or hyper[self.conditions[slot]]
        }

    @property
    def trust_ratio(self) -> tuple[float, float]:
        """The coefficient and the eps of the trust ratio of a two-phase rule."""
        return 1.0, 0.0


class SGD(Rule, frozen=True, tag="sgd"):
    """stochastic gradient descent: value - lr * gradient"""

    flops: ClassVar = 2


class Momentum(Rule, frozen=True, tag="momentum"):
    """gradient descent with momentum: trace = momentum * trace + gradient;
    value - lr * trace (Polyak 1964)"""

    slots: ClassVar = ("trace",)
    flops: ClassVar = 4
    momentum: Annotated[Decay, doc("decay of the trace")] = 0.9


class Nesterov(Momentum, frozen=True, tag="nesterov"):
    """gradient descent with Nesterov momentum: trace as in momentum;
    value - lr * (momentum * trace + gradient) (Nesterov 1983; Sutskever et al. 2013)"""

    flops: ClassVar = 6


class Adagrad(Rule, frozen=True, tag="adagrad"):
    """the gradient divided by the root of the sum of all squared gradients
    (Duchi et al. 2011)"""

    slots: ClassVar = ("sum_of_squares",)
    flops: ClassVar = 7
    initial_values: ClassVar = {"sum_of_squares": "initial_accumulator_value"}
    initial_accumulator_value: Annotated[
        NonNegative, doc("initial value of the sum of squares")
    ] = 0.1
    eps: Annotated[NonNegative, doc("added to the sum of squares")] = 1e-7


class RMSProp(Rule, frozen=True, tag="rmsprop"):
    """the gradient divided by the root of the running mean of its square, or of its
    variance if centered (Tieleman and Hinton 2012; Graves 2013)"""

    slots: ClassVar = ("nu", "mu", "trace")
    flops: ClassVar = 9
    initial_values: ClassVar = {"nu": "initial_scale"}
    conditions: ClassVar = {"mu": "centered", "trace": "momentum"}
    decay: Annotated[Decay, doc("decay of the running means")] = 0.9
    eps: Annotated[NonNegative, doc("added to the mean of squares")] = 1e-8
    initial_scale: Annotated[
        NonNegative, doc("initial value of the mean of squares")
    ] = 0.0
    centered: Annotated[bool, doc("subtract the squared mean")] = False
    momentum: Annotated[
        Decay, doc("decay of a trace of the changes; 0 for no trace")
    ] = 0.0


class Adadelta(Rule, frozen=True, tag="adadelta"):
    """the gradient, multiplied by the root of the mean squared change and divided by the
    root of the mean squared gradient (Zeiler 2012)"""

    slots: ClassVar = ("e_g", "e_x")
    flops: ClassVar = 16
    rho: Annotated[Decay, doc("decay of both means")] = 0.9
    eps: Annotated[NonNegative, doc("added to both means")] = 1e-6


class Adam(Rule, frozen=True, tag="adam"):
    """running means of the gradient and of its square, with bias correction:
    value - lr * mu / (sqrt(nu) + eps) (Kingma and Ba 2015)"""

    slots: ClassVar = ("mu", "nu")
    flops: ClassVar = 14
    b1: Annotated[Decay, doc("decay of the first moment")] = 0.9
    b2: Annotated[Decay, doc("decay of the second moment")] = 0.999
    eps: Annotated[NonNegative, doc("added to the root of the second moment")] = 1e-8


_SHARE: Final = doc("share of the value added to the update, for parameters with decay")


class AdamW(Adam, frozen=True, tag="adamw"):
    """adam with decoupled weight decay (Loshchilov and Hutter 2019)"""

    flops: ClassVar = 16
    weight_decay: Annotated[NonNegative, _SHARE] = 1e-4


class Adamax(Rule, frozen=True, tag="adamax"):
    """adam with a decayed maximum of the gradient's magnitude instead of the second moment
    (Kingma and Ba 2015)"""

    slots: ClassVar = ("mu", "nu")
    flops: ClassVar = 11
    b1: Annotated[Decay, doc("decay of the first moment")] = 0.9
    b2: Annotated[Decay, doc("decay of the largest gradient")] = 0.999
    eps: Annotated[NonNegative, doc("added to the gradient's magnitude")] = 1e-8


class Nadam(Adam, frozen=True, tag="nadam"):
    """adam with Nesterov momentum (Dozat 2016)"""

    flops: ClassVar = 18


class Lion(Rule, frozen=True, tag="lion"):
    """the sign of a weighted mean of the moment and the gradient (Chen et al. 2023)"""

    slots: ClassVar = ("mu",)
    flops: ClassVar = 11
    b1: Annotated[Decay, doc("share of the moment in the mean")] = 0.9
    b2: Annotated[Decay, doc("decay of the moment")] = 0.99
    weight_decay: Annotated[NonNegative, _SHARE] = 1e-3


class Lamb(Adam, frozen=True, tag="lamb"):
    """adam, with the update of each parameter scaled by its trust ratio
    (You et al. 2020)"""

    flops: ClassVar = 17
    is_two_phase: ClassVar = True
    # The eps is that of the direction, not of the trust ratio.
    b1: Annotated[Decay, doc("decay of the first moment")] = 0.9
    b2: Annotated[Decay, doc("decay of the second moment")] = 0.999
    eps: Annotated[NonNegative, doc("added to the root of the second moment")] = 1e-6
    weight_decay: Annotated[NonNegative, _SHARE] = 0.0


class Lars(Momentum, frozen=True, tag="lars"):
    """momentum, with the gradient of each parameter scaled by its trust ratio
    (You et al. 2017)"""

    flops: ClassVar = 7
    is_two_phase: ClassVar = True
    trust_coefficient: Annotated[NonNegative, doc("factor of the trust ratio")] = 1e-3
    eps: Annotated[NonNegative, doc("added to the gradient's norm")] = 0.0
    weight_decay: Annotated[NonNegative, _SHARE] = 0.0

    @property
    def trust_ratio(self) -> tuple[float, float]:
        """The coefficient and the eps of the trust ratio.

        >>> Lars(eps=1e-9).trust_ratio
        (0.001, 1e-09)
        """
        return self.trust_coefficient, self.eps


class Ftrl(Rule, frozen=True, tag="ftrl"):
    """follow the regularized leader, with a learning rate for each element: weights that
    gradients do not move by more than l1 are 0 (McMahan et al. 2013)"""

    slots: ClassVar = ("linear", "sum_of_squares")
    flops: ClassVar = 16
    initial_values: ClassVar = {"sum_of_squares": "initial_accumulator_value"}
    begins_at_zero: ClassVar = True
    l1: Annotated[NonNegative, doc("weight of the absolute values")] = 0.0
    l2: Annotated[NonNegative, doc("weight of half of the squares")] = 0.0
    beta: Annotated[NonNegative, doc("added to the root of the sum of squares")] = 0.0
    initial_accumulator_value: Annotated[
        NonNegative, doc("initial value of the sum of squares")
    ] = 0.1


class RowwiseAdagrad(Adagrad, frozen=True, tag="rowwise_adagrad"):
    """adagrad with one sum of squares for each row: that of the mean squares of its
    gradients"""

    row_slot: ClassVar = "sum_of_squares"


class SharedAdagrad(Rule, frozen=True, tag="shared_adagrad"):
    """PaddlePaddle's adagrad with one sum of squares G for each row:
    value - lr * gradient * sqrt(initial_g2sum / (initial_g2sum + G)), then G grows by the
    mean square of the gradient"""

    slots: ClassVar = ("g2sum",)
    flops: ClassVar = 7
    row_slot: ClassVar = "g2sum"
    initial_g2sum: Annotated[NonNegative, doc("added to the sum of squares")] = 3.0


class RowwiseAdam(Adam, frozen=True, tag="rowwise_adam"):
    """adam with one second moment for each row: that of the mean squares of its
    gradients"""

    row_slot: ClassVar = "nu"


def name_of(rule: type[Rule]) -> str:
    """Return the name of a rule, such as `adam`."""
    return str(rule.__struct_config__.tag)


def _by_name(*rules: type[Rule]) -> dict[str, type[Rule]]:
    return {name_of(rule): rule for rule in rules}


DENSE_RULES = _by_name(
    *(SGD, Momentum, Nesterov, Adagrad, RMSProp, Adadelta, Adam, AdamW, Adamax, Nadam),
    *(Lion, Lamb, Lars, Ftrl),
)
"""The update rules that any parameter can have, by name."""
ROW_RULES = _by_name(RowwiseAdagrad, SharedAdagrad, RowwiseAdam)
"""The row-wise rules, which only sparse tables have."""
RULES: dict[str, type[Rule]] = {**DENSE_RULES, **ROW_RULES}
"""The update rules by name."""


@dataclass(frozen=True, slots=True)
class Hyperparameter:
    """A hyperparameter of a rule: its type, float or bool, its default and its meaning."""

    type: type
    default: float
    doc: str


@cache
def hyperparameters(rule: type[Rule]) -> Mapping[str, Hyperparameter]:
    """Return the hyperparameters of a rule by name."""
    found = {}
    for field in structs.fields(rule):
        info = inspect.type_info(field.type)
        assert isinstance(info, inspect.Metadata)
        schema = info.extra_json_schema or {}
        type_ = bool if isinstance(info.type, inspect.BoolType) else float
        found[field.name] = Hyperparameter(type_, field.default, schema["description"])
    return found


def read_rule(name: str, hyper: Mapping[str, Any]) -> Rule:
    """Return a rule with the hyperparameters that are given, and defaults.

    Raises msgspec.ValidationError for a rule or a hyperparameter that is not valid.
    """
    if name not in RULES:
        hint = did_you_mean(name, RULES)
        message = f"unknown optimizer '{name}'" + (f"; {hint}" if hint else "")
        raise msgspec.ValidationError(message)
    return msgspec.convert(hyper, RULES[name])


def nearest_dense(name: str) -> str:
    """Return the rule with a slot for each element that a row-wise rule simplifies."""
    return "adam" if "mu" in RULES[name].slots else "adagrad"


def check_init(rule: str, init: Any) -> Mistake | None:
    """Return what is wrong with the initializer of a parameter for its rule; None if
    nothing is. The message is a predicate of the rule, such as `computes …`."""
    if not RULES[rule].begins_at_zero:
        return None
    written = to_builtins(init)
    if written == "zeros" or (
        isinstance(init, Mapping | Initializer) and written.get("constant") == 0
    ):
        return None
    message = f"computes a value from its slots, so that it begins at 0, not {written}"
    return Mistake(("init",), message)


def check_outer(name: str) -> Mistake | None:
    """Return why servers cannot have a rule as their outer optimizer; None if they can."""
    what = f"'{name}' cannot be an outer optimizer: it"
    rule = RULES[name]
    if rule.is_two_phase:
        why = "needs norms of whole parameters, and servers have blocks of them"
        return Mistake(("op",), f"{what} {why}", "nesterov, sgd or adam need none")
    if rule.row_slot:
        why = "is a rule of sparse tables, which have no outer optimizer"
        return Mistake(("op",), f"{what} {why}", f"use {nearest_dense(name)}")
    return None
