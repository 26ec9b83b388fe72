"""The update rules of optimizers: hyperparameters, slots and cost.

Formulas and defaults follow optax; `placer.tables.optimizer_rules` computes the updates.
The learning rate is not a hyperparameter: a schedule sets it for each step
(`placer.plan.settings.training.schedules`).
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
"""The name of a table's values, alongside the names of its slots."""
OF_SEVERAL_NODES: Final = ("shard_state", "all_reduce", "sum")
"""The optimizer settings that need an optimizer on several nodes."""

NonNegative = Annotated[float, Meta(ge=0)]
Decay = Annotated[float, Meta(ge=0, lt=1)]


class Rule(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An update rule; the fields are its hyperparameters.

    The docstring of a subclass is the formula, the tag is the name of the rule.

    Attributes:
        slots: the names of the state per element, in the table's dtype.
        flops: the FLOPs to update one element.
        initial_values: by slot, the hyperparameter with its initial value; default 0.
        conditions: by slot, the hyperparameter that must be nonzero for the slot to exist.
        is_two_phase: the rule first computes the update direction. A second phase scales
            the direction by a trust ratio of the norms of the whole parameter and the
            whole direction.
        row_slot: the slot that a row-wise rule keeps once per row instead of per element.
            It is the sum of the mean squares of the row's gradients, or their running
            mean with `b2` if the rule has this hyperparameter.
        begins_at_zero: the slots determine the value, so initial values must be 0.
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
        """All hyperparameters by name, with their values."""
        return structs.asdict(self)

    @property
    def first_slots(self) -> dict[str, float]:
        """The slots that exist with these hyperparameters, and their initial values.

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
        """The coefficient and eps of a two-phase rule's trust ratio."""
        return 1.0, 0.0


class SGD(Rule, frozen=True, tag="sgd"):
    """stochastic gradient descent: value - lr * gradient"""

    flops: ClassVar = 2


class Momentum(Rule, frozen=True, tag="momentum"):
    """gradient descent with momentum: trace = momentum * trace + gradient;
    value - lr * trace (Polyak 1964)"""

    slots: ClassVar = ("trace",)
    flops: ClassVar = 4
    momentum: Annotated[Decay, doc("decay rate of the trace")] = 0.9


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
    decay: Annotated[Decay, doc("decay rate of the running means")] = 0.9
    eps: Annotated[NonNegative, doc("added to the mean square")] = 1e-8
    initial_scale: Annotated[NonNegative, doc("initial value of the mean square")] = 0.0
    centered: Annotated[bool, doc("subtract the square of the gradient's mean")] = False
    momentum: Annotated[
        Decay, doc("decay rate of a momentum trace; 0 means no trace")
    ] = 0.0


class Adadelta(Rule, frozen=True, tag="adadelta"):
    """the gradient, multiplied by the root of the mean squared change and divided by the
    root of the mean squared gradient (Zeiler 2012)"""

    slots: ClassVar = ("e_g", "e_x")
    flops: ClassVar = 16
    rho: Annotated[Decay, doc("decay rate of both running means")] = 0.9
    eps: Annotated[NonNegative, doc("added to both running means")] = 1e-6


class Adam(Rule, frozen=True, tag="adam"):
    """running means of the gradient and of its square, with bias correction:
    value - lr * mu / (sqrt(nu) + eps) (Kingma and Ba 2015)"""

    slots: ClassVar = ("mu", "nu")
    flops: ClassVar = 14
    b1: Annotated[Decay, doc("decay rate of the first moment")] = 0.9
    b2: Annotated[Decay, doc("decay rate of the second moment")] = 0.999
    eps: Annotated[NonNegative, doc("added to the root of the second moment")] = 1e-8


_SHARE: Final = doc(
    "adds this fraction of the parameter to the update, except with decay: false"
)


class AdamW(Adam, frozen=True, tag="adamw"):
    """adam with decoupled weight decay (Loshchilov and Hutter 2019)"""

    flops: ClassVar = 16
    weight_decay: Annotated[NonNegative, _SHARE] = 1e-4


class Adamax(Rule, frozen=True, tag="adamax"):
    """adam with the decayed maximum of the gradient's magnitude in place of the second
    moment (Kingma and Ba 2015)"""

    slots: ClassVar = ("mu", "nu")
    flops: ClassVar = 11
    b1: Annotated[Decay, doc("decay rate of the first moment")] = 0.9
    b2: Annotated[Decay, doc("decay rate of the largest magnitude")] = 0.999
    eps: Annotated[NonNegative, doc("added to the gradient's magnitude")] = 1e-8


class Nadam(Adam, frozen=True, tag="nadam"):
    """adam with Nesterov momentum (Dozat 2016)"""

    flops: ClassVar = 18


class Lion(Rule, frozen=True, tag="lion"):
    """the sign of a weighted mean of momentum and gradient (Chen et al. 2023)"""

    slots: ClassVar = ("mu",)
    flops: ClassVar = 11
    b1: Annotated[Decay, doc("weight of the momentum in the mean")] = 0.9
    b2: Annotated[Decay, doc("decay rate of the momentum")] = 0.99
    weight_decay: Annotated[NonNegative, _SHARE] = 1e-3


class Lamb(Adam, frozen=True, tag="lamb"):
    """adam with each parameter's update scaled by its trust ratio (You et al. 2020)"""

    flops: ClassVar = 17
    is_two_phase: ClassVar = True
    # This eps belongs to the direction, not to the trust ratio.
    b1: Annotated[Decay, doc("decay rate of the first moment")] = 0.9
    b2: Annotated[Decay, doc("decay rate of the second moment")] = 0.999
    eps: Annotated[NonNegative, doc("added to the root of the second moment")] = 1e-6
    weight_decay: Annotated[NonNegative, _SHARE] = 0.0


class Lars(Momentum, frozen=True, tag="lars"):
    """momentum with each parameter's gradient scaled by its trust ratio
    (You et al. 2017)"""

    flops: ClassVar = 7
    is_two_phase: ClassVar = True
    trust_coefficient: Annotated[NonNegative, doc("coefficient of the trust ratio")] = (
        1e-3
    )
    eps: Annotated[NonNegative, doc("added to the gradient's norm")] = 0.0
    weight_decay: Annotated[NonNegative, _SHARE] = 0.0

    @property
    def trust_ratio(self) -> tuple[float, float]:
        """The coefficient and eps of the trust ratio.

        >>> Lars(eps=1e-9).trust_ratio
        (0.001, 1e-09)
        """
        return self.trust_coefficient, self.eps


class Ftrl(Rule, frozen=True, tag="ftrl"):
    """follow the regularized leader, with a learning rate for each element; sets weights
    to 0 unless their gradients exceed l1 (McMahan et al. 2013)"""

    slots: ClassVar = ("linear", "sum_of_squares")
    flops: ClassVar = 16
    initial_values: ClassVar = {"sum_of_squares": "initial_accumulator_value"}
    begins_at_zero: ClassVar = True
    l1: Annotated[NonNegative, doc("weight of the L1 penalty")] = 0.0
    l2: Annotated[
        NonNegative, doc("weight of the L2 penalty, half the sum of squares")
    ] = 0.0
    beta: Annotated[NonNegative, doc("added to the root of the sum of squares")] = 0.0
    initial_accumulator_value: Annotated[
        NonNegative, doc("initial value of the sum of squares")
    ] = 0.1


class RowwiseAdagrad(Adagrad, frozen=True, tag="rowwise_adagrad"):
    """adagrad with one sum of squares for each row, of the row's mean squared gradients"""

    row_slot: ClassVar = "sum_of_squares"


class SharedAdagrad(Rule, frozen=True, tag="shared_adagrad"):
    """PaddlePaddle's adagrad with one sum of squares G for each row:
    value - lr * gradient * sqrt(initial_g2sum / (initial_g2sum + G)); then the gradient's
    mean square is added to G"""

    slots: ClassVar = ("g2sum",)
    flops: ClassVar = 7
    row_slot: ClassVar = "g2sum"
    initial_g2sum: Annotated[NonNegative, doc("added to the sum of squares")] = 3.0


class RowwiseAdam(Adam, frozen=True, tag="rowwise_adam"):
    """adam with one second moment for each row, of the row's mean squared gradients"""

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
"""The update rules for any parameter, by name."""
ROW_RULES = _by_name(RowwiseAdagrad, SharedAdagrad, RowwiseAdam)
"""The row-wise rules, for sparse tables only."""
RULES: dict[str, type[Rule]] = {**DENSE_RULES, **ROW_RULES}
"""All update rules by name."""
OPTAX: Final = "optax"
"""The name of the rule that a user's function defines with optax. It has no `Rule`:
`placer.plan.settings.training.transformations` describes its state and cost."""
RULE_NAMES: Final = tuple(sorted([*RULES, OPTAX]))
"""The names of all rules, and `optax`."""


def is_two_phase(rule: str) -> bool:
    """Whether a rule, or `optax`, first computes the update direction."""
    return rule != OPTAX and RULES[rule].is_two_phase


@dataclass(frozen=True, slots=True)
class Hyperparameter:
    """A hyperparameter of a rule: its type (float or bool), default and description."""

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
    """Return a rule with the given hyperparameters, and defaults for the rest.

    Raises msgspec.ValidationError for an unknown rule or an invalid hyperparameter.
    """
    if name not in RULES:
        hint = did_you_mean(name, RULES)
        message = f"unknown optimizer '{name}'" + (f"; {hint}" if hint else "")
        raise msgspec.ValidationError(message)
    return msgspec.convert(hyper, RULES[name])


def nearest_dense(name: str) -> str:
    """Return the rule with per-element slots that a row-wise rule simplifies."""
    return "adam" if "mu" in RULES[name].slots else "adagrad"


def check_init(rule: str, init: Any) -> Mistake | None:
    """Return why an initializer does not work with a rule, or None.

    The message is a predicate of the rule, such as `needs …`.
    """
    if rule == OPTAX or not RULES[rule].begins_at_zero:
        return None
    written = to_builtins(init)
    if written == "zeros" or (
        isinstance(init, Mapping | Initializer) and written.get("constant") == 0
    ):
        return None
    message = f"computes values from its slots, so it needs init: zeros, not {written}"
    return Mistake(("init",), message)


def check_outer(name: str) -> Mistake | None:
    """Return why servers cannot use a rule as their outer optimizer, or None."""
    what = f"'{name}' cannot be an outer optimizer: it"
    if name == OPTAX:
        why = "is a function of the user, but servers apply only rules of placer"
        return Mistake(("op",), f"{what} {why}", "use nesterov, sgd or adam")
    rule = RULES[name]
    if rule.is_two_phase:
        why = "needs norms of whole parameters, but servers store blocks of them"
        return Mistake(("op",), f"{what} {why}", "use nesterov, sgd or adam")
    if rule.row_slot:
        why = "works only with sparse tables, which have no outer optimizer"
        return Mistake(("op",), f"{what} {why}", f"use {nearest_dense(name)}")
    return None
