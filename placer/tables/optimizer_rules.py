"""Optimizer rules, written as functions of one element.

A rule takes an element of each array (`value`, then slots), the gradient, and the numbers of
the step. It returns the new elements of the arrays. `placer.tables.compiled_kernels` compiles
a rule into a loop over a table in host memory. `placer.tables.device` calls it with JAX
arrays.

All arrays and numbers have the same dtype, and rules contain no literals. Each operation is
therefore computed and rounded in this dtype. The update of a slice is bit for bit a slice of
the update. These rules divide by a root where optax multiplies by a reciprocal root.

CONTRIBUTING.md explains how to add a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from inspect import signature
from math import nan
from typing import Any, NamedTuple

import numpy as np

from placer.plan.settings.training import optimizers
from placer.plan.settings.training.optimizers import Rule
from placer.tables.elementary import absolute, maximum, sign, sqrt, where

Hyper = Mapping[str, float]
Number = Any
"""A number, or an array of any shape."""
Results = tuple[Number, ...]
Kernel = Callable[..., Results]
"""The function of a rule, or of one phase of a two-phase rule. Its arguments are an element
of each array in `arrays_of`, the gradient and the numbers. It returns the new elements."""


class StepNumbers(NamedTuple):
    """The numbers of a step that rules use.

    Numbers for hyperparameters that a rule lacks are NaN.

    Attributes:
        rate: the learning rate of the step.
        zero: 0 in the dtype of the arrays.
        weight_decay: the hyperparameter; 0 for a parameter without weight decay.
        one_minus_b1: 1 - b1. Other names with `one_minus_` are similar.
        correction_b1: 1 - b1**step, the bias correction of a mean that started at 0.
        next_correction_b1: the bias correction of the next step.

    All other fields are hyperparameters of the same name.
    """

    rate: Number
    zero: Number
    weight_decay: Number
    eps: Number
    momentum: Number
    decay: Number
    one_minus_decay: Number
    rho: Number
    one_minus_rho: Number
    b1: Number
    one_minus_b1: Number
    correction_b1: Number
    next_correction_b1: Number
    b2: Number
    one_minus_b2: Number
    correction_b2: Number
    initial_g2sum: Number
    l1: Number
    l2: Number
    beta: Number


def record_of_numbers(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of a record of `StepNumbers` of one dtype."""
    return np.dtype([(name, dtype) for name in StepNumbers._fields])


def sgd(value: Number, gradient: Number, n: StepNumbers) -> Results:
    return (value - n.rate * gradient,)


def momentum(value: Number, trace: Number, gradient: Number, n: StepNumbers) -> Results:
    trace = gradient + n.momentum * trace
    return value - n.rate * trace, trace


def nesterov(value: Number, trace: Number, gradient: Number, n: StepNumbers) -> Results:
    trace = gradient + n.momentum * trace
    return value - n.rate * (gradient + n.momentum * trace), trace


def adagrad(
    value: Number, sum_of_squares: Number, gradient: Number, n: StepNumbers
) -> Results:
    total = gradient * gradient + sum_of_squares
    scaled = gradient / sqrt(total + n.eps)
    # An element whose gradients were all 0 keeps its value, even if eps is 0.
    change = where(total > n.zero, scaled, n.zero * gradient)
    return value - n.rate * change, total


def rmsprop(value: Number, nu: Number, gradient: Number, n: StepNumbers) -> Results:
    nu = n.one_minus_decay * (gradient * gradient) + n.decay * nu
    return value - n.rate * (gradient / sqrt(nu + n.eps)), nu


def rmsprop_with_momentum(
    value: Number, nu: Number, trace: Number, gradient: Number, n: StepNumbers
) -> Results:
    nu = n.one_minus_decay * (gradient * gradient) + n.decay * nu
    trace = n.momentum * trace - n.rate * (gradient / sqrt(nu + n.eps))
    return value + trace, nu, trace


def rmsprop_centered(
    value: Number, nu: Number, mu: Number, gradient: Number, n: StepNumbers
) -> Results:
    nu = n.one_minus_decay * (gradient * gradient) + n.decay * nu
    mu = n.one_minus_decay * gradient + n.decay * mu
    return value - n.rate * (gradient / sqrt(nu - mu * mu + n.eps)), nu, mu


def rmsprop_centered_with_momentum(
    value: Number,
    nu: Number,
    mu: Number,
    trace: Number,
    gradient: Number,
    n: StepNumbers,
) -> Results:
    nu = n.one_minus_decay * (gradient * gradient) + n.decay * nu
    mu = n.one_minus_decay * gradient + n.decay * mu
    trace = n.momentum * trace - n.rate * (gradient / sqrt(nu - mu * mu + n.eps))
    return value + trace, nu, mu, trace


def ftrl(
    value: Number,
    linear: Number,
    sum_of_squares: Number,
    gradient: Number,
    n: StepNumbers,
) -> Results:
    total = gradient * gradient + sum_of_squares
    moved = (sqrt(total) - sqrt(sum_of_squares)) / n.rate * value
    changed = linear + gradient - moved
    shrunk = sign(changed) * n.l1 - changed
    weight = shrunk / ((n.beta + sqrt(total)) / n.rate + n.l2)
    new = where(absolute(changed) > n.l1, weight, n.zero * changed)
    # With a learning rate of 0, nothing changes.
    learns = n.rate > n.zero
    return (
        where(learns, new, value),
        where(learns, changed, linear),
        where(learns, total, sum_of_squares),
    )


def adadelta(
    value: Number, e_g: Number, e_x: Number, gradient: Number, n: StepNumbers
) -> Results:
    e_g = n.one_minus_rho * (gradient * gradient) + n.rho * e_g
    change = sqrt(e_x + n.eps) / sqrt(e_g + n.eps) * gradient
    e_x = n.one_minus_rho * (change * change) + n.rho * e_x
    return value - n.rate * change, e_g, e_x


def adam(
    value: Number, mu: Number, nu: Number, gradient: Number, n: StepNumbers
) -> Results:
    mu = n.one_minus_b1 * gradient + n.b1 * mu
    nu = n.one_minus_b2 * (gradient * gradient) + n.b2 * nu
    change = mu / n.correction_b1 / (sqrt(nu / n.correction_b2) + n.eps)
    return value - n.rate * (change + n.weight_decay * value), mu, nu


def nadam(
    value: Number, mu: Number, nu: Number, gradient: Number, n: StepNumbers
) -> Results:
    mu = n.one_minus_b1 * gradient + n.b1 * mu
    nu = n.one_minus_b2 * (gradient * gradient) + n.b2 * nu
    current = n.one_minus_b1 * (gradient / n.correction_b1)
    ahead = n.b1 * (mu / n.next_correction_b1) + current
    return value - n.rate * (ahead / (sqrt(nu / n.correction_b2) + n.eps)), mu, nu


def adamax(
    value: Number, mu: Number, nu: Number, gradient: Number, n: StepNumbers
) -> Results:
    mu = n.one_minus_b1 * gradient + n.b1 * mu
    nu = maximum(absolute(gradient) + n.eps, n.b2 * nu)
    return value - n.rate * (mu / n.correction_b1 / nu), mu, nu


def lion(value: Number, mu: Number, gradient: Number, n: StepNumbers) -> Results:
    change = sign(n.one_minus_b1 * gradient + n.b1 * mu)
    mu = n.one_minus_b2 * gradient + n.b2 * mu
    return value - n.rate * (change + n.weight_decay * value), mu


# Two-phase rules. The trust ratio of each whole parameter is computed between the phases.


def lamb_direction(
    value: Number, mu: Number, nu: Number, gradient: Number, n: StepNumbers
) -> Results:
    mu = n.one_minus_b1 * gradient + n.b1 * mu
    nu = n.one_minus_b2 * (gradient * gradient) + n.b2 * nu
    change = mu / n.correction_b1 / (sqrt(nu / n.correction_b2) + n.eps)
    return change + n.weight_decay * value, mu, nu


def lars_direction(value: Number, gradient: Number, n: StepNumbers) -> Results:
    return (gradient + n.weight_decay * value,)


def lars(value: Number, trace: Number, gradient: Number, n: StepNumbers) -> Results:
    trace = n.momentum * trace - n.rate * gradient
    return value + trace, trace


# Row-wise rules. Instead of the slot of the row, they take its values before and after the
# update.


def rowwise_adagrad(
    value: Number, before: Number, after: Number, gradient: Number, n: StepNumbers
) -> Results:
    scaled = gradient / sqrt(after + n.eps)
    change = where(after > n.zero, scaled, n.zero * gradient)
    return (value - n.rate * change,)


def shared_adagrad(
    value: Number, before: Number, after: Number, gradient: Number, n: StepNumbers
) -> Results:
    scale = sqrt(n.initial_g2sum / (n.initial_g2sum + before))
    return (value - n.rate * gradient * scale,)


def rowwise_adam(
    value: Number,
    mu: Number,
    before: Number,
    after: Number,
    gradient: Number,
    n: StepNumbers,
) -> Results:
    mu = n.one_minus_b1 * gradient + n.b1 * mu
    change = mu / n.correction_b1 / (sqrt(after / n.correction_b2) + n.eps)
    return value - n.rate * change, mu


@cache
def arrays_of(kernel: Kernel) -> tuple[str, ...]:
    """Return the arrays that a kernel reads and writes: `value`, then slots.

    The first phase of a two-phase rule returns the update direction instead of the new
    value. The gradient of the second phase is the direction times the trust ratio.

    Raises:
        TypeError: if the kernel reads a number that is not a field of `StepNumbers`.
    """
    for name in kernel.__code__.co_names:  # names of functions and of numbers
        if name not in kernel.__globals__ and name not in StepNumbers._fields:
            raise TypeError(
                f"the rule '{kernel.__name__}' reads '{name}', which is not a field of"
                " StepNumbers in placer/tables/optimizer_rules.py"
            )
    *arrays, _, _ = signature(kernel).parameters
    return tuple(arrays)


def kernels_of(rule: Rule) -> tuple[Kernel, ...]:
    """Return the kernel of a rule, or the two kernels of a two-phase rule.

    The first kernel of a two-phase rule computes the update direction.
    """
    match rule:
        case optimizers.RMSProp():
            variants = (
                (rmsprop, rmsprop_with_momentum),
                (rmsprop_centered, rmsprop_centered_with_momentum),
            )
            return (variants[rule.centered][rule.momentum > 0],)
        case optimizers.AdamW():
            return (adam,)
        case optimizers.Lamb():
            return lamb_direction, sgd
        case optimizers.Lars():
            return lars_direction, lars
    return (globals()[rule.name],)


def constant_numbers(hyper: Hyper, *, decays: bool) -> StepNumbers:
    """Return the numbers that are the same in every step; all other numbers are NaN."""
    known = {"zero": 0.0, "weight_decay": 0.0, **hyper}
    if not decays:
        known["weight_decay"] = 0.0
    known |= {f"one_minus_{key}": 1 - value for key, value in hyper.items()}
    return StepNumbers(*(known.get(name, nan) for name in StepNumbers._fields))


def changing_numbers(
    hyper: Hyper, step: int, rate: float, dtype: np.dtype[Any]
) -> dict[str, Number]:
    """Return the numbers that change in each step, by name. Steps count from 1.

    Corrections are rounded in the same places as in optax. In float32, b**step is rounded to
    float32 first, so 1 - b**step differs from the exact value if b is near 1.
    """
    real = dtype.type

    def correction(key: str, power: int) -> Number:
        if key not in hyper:
            return nan
        return real(1) - real(float(real(hyper[key])) ** power)

    return {
        "rate": rate,
        "correction_b1": correction("b1", step),
        "next_correction_b1": correction("b1", step + 1),
        "correction_b2": correction("b2", step),
    }
