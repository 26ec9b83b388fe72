"""The update rules: `SGD(0.1).minimize(loss)`.

Written by `python -m placer.report.generate_python` from the rules in
`placer.config.optimizers`: do not edit. The rules are those of optax, with its defaults.
"""

# The names are those of Fluid, where these are classes.
# ruff: noqa: N802

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from placer.front.training import Optimizer, of_rule

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Lamb",
    "Lars",
    "Lion",
    "Momentum",
    "Nadam",
    "Nesterov",
    "RMSProp",
]

Rate = float | Mapping[str, Any]
"""A number, or a schedule such as `{"cosine": {"init": 0.01, "steps": 1000}}`."""


def Adadelta(
    learning_rate: Rate,
    *,
    rho: float = 0.9,
    eps: float = 1e-06,
    match: str | None = None,
    clip: Mapping[str, float] | None = None,
    update: Literal["sync"] = "sync",
) -> Optimizer:
    """Gradient times the root of the mean squared change over that of the mean squared
    gradient (Zeiler 2012).

    learning_rate: a number, or a schedule as in docs/spec.md.
    match: a glob over parameter names; without it, all that are left.
    clip: a bound on this optimizer's gradients, as {"global_norm": 1.0}.
    update: how gradients meet.
    rho: decay of both means.
    eps: added to both means.
    """
    return of_rule(
        "adadelta",
        {
            "learning_rate": learning_rate,
            "rho": rho,
            "eps": eps,
            "match": match,
            "clip": clip,
            "update": update,
        },
    )


def Adagrad(
    learning_rate: Rate,
    *,
    initial_accumulator_value: float = 0.1,
    eps: float = 1e-07,
    match: str | None = None,
    clip: Mapping[str, float] | None = None,
    update: Literal["sync"] = "sync",
) -> Optimizer:
    """Gradient over the root of the sum of all squares (Duchi et al. 2011).

    learning_rate: a number, or a schedule as in docs/spec.md.
    match: a glob over parameter names; without it, all that are left.
    clip: a bound on this optimizer's gradients, as {"global_norm": 1.0}.
    update: how gradients meet.
    initial_accumulator_value: what the sum of squares begins at.
    eps: added to the sum of squares.
    """
    return of_rule(
        "adagrad",
        {
            "learning_rate": learning_rate,
            "initial_accumulator_value": initial_accumulator_value,
            "eps": eps,
            "match": match,
            "clip": clip,
            "update": update,
        },
    )


def Adam(
    learning_rate: Rate,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-08,
    match: str | None = None,
    clip: Mapping[str, float] | None = None,
    update: Literal["sync"] = "sync",
) -> Optimizer:
    """Moments with bias correction (Kingma and Ba 2015).

    learning_rate: a number, or a schedule as in docs/spec.md.
    match: a glob over parameter names; without it, all that are left.
    clip: a bound on this optimizer's gradients, as {"global_norm": 1.0}.
    update: how gradients meet.
    b1: decay of the first moment.
    b2: decay of the second moment.
    eps: added to the root of the second moment.
    """
    return of_rule(
        "adam",
        {
            "learning_rate": learning_rate,
            "b1": b1,
            "b2": b2,
            "eps": eps,
            "match": match,
            "clip": clip,
            "update": update,
        },
    )


def Adamax(
    learning_rate: Rate,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-08,
    match: str | None = None,
    clip: Mapping[str, float] | None = None,
    update: Literal["sync"] = "sync",
) -> Optimizer:
    """Adam by the largest gradient, decayed, in place of the second moment (Kingma and
    Ba 2015).

    learning_rate: a number, or a schedule as in docs/spec.md.
    match: a glob over parameter names; without it, all that are left.
    clip: a bound on this optimizer's gradients, as {"global_norm": 1.0}.
    update: how gradients meet.
    b1: decay of the first moment.
    b2: decay of the largest gradient.
    eps: added to the gradient's magnitude.
    """
    return of_rule(
        "adamax",
        {
            "learning_rate": learning_rate,
            "b1": b1,
            "b2": b2,
            "eps": eps,
            "match": match,
            "clip": clip,
            "update": update,
        },
    )


def AdamW(
    learning_rate: Rate,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-08,
    weight_decay: float = 0.0001,
    match: str | None = None,
    clip: Mapping[str, float] | None = None,
    update: Literal["sync"] = "sync",
) -> Optimizer:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019).

    learning_rate: a number, or a schedule as in docs/spec.md.
    match: a glob over parameter names; without it, all that are left.
    clip: a bound on this optimizer's gradients, as {"global_norm": 1.0}.
    update: how gradients meet.
    b1: decay of the first moment.
    b2: decay of the second moment.
    eps: added to the root of the second moment.
    weight_decay: share of the value added to what is followed, where a parameter
        decays.
    """
    return of_rule(
        "adamw",
        {
            "learning_rate": learning_rate,
            "b1": b1,
            "b2": b2,
            "eps": eps,
            "weight_decay": weight_decay,
            "match": match,
            "clip": clip,
            "update": update,
        },
    )


def Lamb(
    learning_rate: Rate,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-06,
    weight_decay: float = 0.0,
    match: str | None = None,
    clip: Mapping[str, float] | None = None,
    update: Literal["sync"] = "sync",
) -> Optimizer:
    """Adam, each parameter's change scaled to the norm of its value (You et al. 2020).

    learning_rate: a number, or a schedule as in docs/spec.md.
    match: a glob over parameter names; without it, all that are left.
    clip: a bound on this optimizer's gradients, as {"global_norm": 1.0}.
    update: how gradients meet.
    b1: decay of the first moment.
    b2: decay of the second moment.
    eps: added to the root of the second moment.
    weight_decay: share of the value added to what is followed, where a parameter
        decays.
    """
    return of_rule(
        "lamb",
        {
            "learning_rate": learning_rate,
            "b1": b1,
            "b2": b2,
            "eps": eps,
            "weight_decay": weight_decay,
            "match": match,
            "clip": clip,
            "update": update,
        },
    )


def Lars(
    learning_rate: Rate,
    *,
    momentum: float = 0.9,
    trust_coefficient: float = 0.001,
    eps: float = 0.0,
    weight_decay: float = 0.0,
    match: str | None = None,
    clip: Mapping[str, float] | None = None,
    update: Literal["sync"] = "sync",
) -> Optimizer:
    """Momentum, each parameter's gradient scaled to the norm of its value (You et al.
    2017).

    learning_rate: a number, or a schedule as in docs/spec.md.
    match: a glob over parameter names; without it, all that are left.
    clip: a bound on this optimizer's gradients, as {"global_norm": 1.0}.
    update: how gradients meet.
    momentum: decay of the trace.
    trust_coefficient: factor of the trust ratio.
    eps: added to the gradient's norm.
    weight_decay: share of the value added to what is followed, where a parameter
        decays.
    """
    return of_rule(
        "lars",
        {
            "learning_rate": learning_rate,
            "momentum": momentum,
            "trust_coefficient": trust_coefficient,
            "eps": eps,
            "weight_decay": weight_decay,
            "match": match,
            "clip": clip,
            "update": update,
        },
    )


def Lion(
    learning_rate: Rate,
    *,
    b1: float = 0.9,
    b2: float = 0.99,
    weight_decay: float = 0.001,
    match: str | None = None,
    clip: Mapping[str, float] | None = None,
    update: Literal["sync"] = "sync",
) -> Optimizer:
    """Sign of a mean of gradient and moment (Chen et al. 2023).

    learning_rate: a number, or a schedule as in docs/spec.md.
    match: a glob over parameter names; without it, all that are left.
    clip: a bound on this optimizer's gradients, as {"global_norm": 1.0}.
    update: how gradients meet.
    b1: share of the moment in the mean.
    b2: decay of the moment.
    weight_decay: share of the value added to what is followed, where a parameter
        decays.
    """
    return of_rule(
        "lion",
        {
            "learning_rate": learning_rate,
            "b1": b1,
            "b2": b2,
            "weight_decay": weight_decay,
            "match": match,
            "clip": clip,
            "update": update,
        },
    )


def Momentum(
    learning_rate: Rate,
    *,
    momentum: float = 0.9,
    match: str | None = None,
    clip: Mapping[str, float] | None = None,
    update: Literal["sync"] = "sync",
) -> Optimizer:
    """Trace = momentum * trace + gradient; value - lr * trace (Polyak 1964).

    learning_rate: a number, or a schedule as in docs/spec.md.
    match: a glob over parameter names; without it, all that are left.
    clip: a bound on this optimizer's gradients, as {"global_norm": 1.0}.
    update: how gradients meet.
    momentum: decay of the trace.
    """
    return of_rule(
        "momentum",
        {
            "learning_rate": learning_rate,
            "momentum": momentum,
            "match": match,
            "clip": clip,
            "update": update,
        },
    )


def Nadam(
    learning_rate: Rate,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-08,
    match: str | None = None,
    clip: Mapping[str, float] | None = None,
    update: Literal["sync"] = "sync",
) -> Optimizer:
    """Adam with Nesterov's look ahead (Dozat 2016).

    learning_rate: a number, or a schedule as in docs/spec.md.
    match: a glob over parameter names; without it, all that are left.
    clip: a bound on this optimizer's gradients, as {"global_norm": 1.0}.
    update: how gradients meet.
    b1: decay of the first moment.
    b2: decay of the second moment.
    eps: added to the root of the second moment.
    """
    return of_rule(
        "nadam",
        {
            "learning_rate": learning_rate,
            "b1": b1,
            "b2": b2,
            "eps": eps,
            "match": match,
            "clip": clip,
            "update": update,
        },
    )


def Nesterov(
    learning_rate: Rate,
    *,
    momentum: float = 0.9,
    match: str | None = None,
    clip: Mapping[str, float] | None = None,
    update: Literal["sync"] = "sync",
) -> Optimizer:
    """Momentum that looks one trace ahead: value - lr * (momentum * trace + gradient)
    (Nesterov 1983; Sutskever et al. 2013).

    learning_rate: a number, or a schedule as in docs/spec.md.
    match: a glob over parameter names; without it, all that are left.
    clip: a bound on this optimizer's gradients, as {"global_norm": 1.0}.
    update: how gradients meet.
    momentum: decay of the trace.
    """
    return of_rule(
        "nesterov",
        {
            "learning_rate": learning_rate,
            "momentum": momentum,
            "match": match,
            "clip": clip,
            "update": update,
        },
    )


def RMSProp(
    learning_rate: Rate,
    *,
    decay: float = 0.9,
    eps: float = 1e-08,
    initial_scale: float = 0.0,
    centered: bool = False,
    momentum: float = 0.0,
    match: str | None = None,
    clip: Mapping[str, float] | None = None,
    update: Literal["sync"] = "sync",
) -> Optimizer:
    """Gradient over the root of a running mean of squares, centered: of the variance
    (Tieleman and Hinton 2012; Graves 2013).

    learning_rate: a number, or a schedule as in docs/spec.md.
    match: a glob over parameter names; without it, all that are left.
    clip: a bound on this optimizer's gradients, as {"global_norm": 1.0}.
    update: how gradients meet.
    decay: decay of the running means.
    eps: added to the mean of squares.
    initial_scale: what the mean of squares begins at.
    centered: take the squared mean off.
    momentum: decay of a trace of the changes; 0 keeps none.
    """
    return of_rule(
        "rmsprop",
        {
            "learning_rate": learning_rate,
            "decay": decay,
            "eps": eps,
            "initial_scale": initial_scale,
            "centered": centered,
            "momentum": momentum,
            "match": match,
            "clip": clip,
            "update": update,
        },
    )


def SGD(
    learning_rate: Rate,
    *,
    match: str | None = None,
    clip: Mapping[str, float] | None = None,
    update: Literal["sync"] = "sync",
) -> Optimizer:
    """Value - lr * gradient.

    learning_rate: a number, or a schedule as in docs/spec.md.
    match: a glob over parameter names; without it, all that are left.
    clip: a bound on this optimizer's gradients, as {"global_norm": 1.0}.
    update: how gradients meet.
    """
    return of_rule(
        "sgd",
        {
            "learning_rate": learning_rate,
            "match": match,
            "clip": clip,
            "update": update,
        },
    )
