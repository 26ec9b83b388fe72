"""The optimizer rules: each is written once, as a function of one element.

A rule takes an element of each array that it reads (`value`, slots), then `gradient`,
then its numbers, and returns the new elements of the arrays that it writes, which are
those it reads unless declared otherwise. `placer.tables.compiled_kernels` compiles it
into a loop over a table in host memory; `placer.tables.device` calls it with JAX arrays.

Numbers are found by their names:

- `rate`: the learning rate of the step
- `weight_decay`: the hyperparameter, 0 for a parameter that does not decay
- `one_minus_b1`: 1 - b1, of any hyperparameter
- `correction_b1`: 1 - b1**step, the bias correction of a mean that started at 0
- `next_correction_b1`: the same, one step later
- `zero`: 0, in the dtype of the arrays
- any other name: the hyperparameter of that name

Arrays and numbers have one dtype, and there are no literals, so everything is computed
in that dtype and rounded after each operation, as written: an update of a slice is a
slice of the update, bit for bit. Where optax multiplies by a reciprocal root, these
rules divide by the root.

To add a rule, declare its hyperparameters and slots in `placer.config.optimizers`, and
write its function here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
import numpy.typing as npt

from placer.tables.elementary import absolute, maximum, sign, sqrt, where

Hyper = Mapping[str, float]
Number = Any
"""A number, or an array of any shape."""
Numbers = tuple[Number, ...]


def sgd(value: Number, gradient: Number, rate: Number) -> Numbers:
    return (value - rate * gradient,)


def momentum(
    value: Number, trace: Number, gradient: Number, rate: Number, momentum: Number
) -> Numbers:
    trace = gradient + momentum * trace
    return value - rate * trace, trace


def nesterov(
    value: Number, trace: Number, gradient: Number, rate: Number, momentum: Number
) -> Numbers:
    trace = gradient + momentum * trace
    return value - rate * (gradient + momentum * trace), trace


def adagrad(
    value: Number,
    sum_of_squares: Number,
    gradient: Number,
    rate: Number,
    eps: Number,
    zero: Number,
) -> Numbers:
    total = gradient * gradient + sum_of_squares
    scaled = gradient / sqrt(total + eps)
    # An element that has never had a gradient keeps its value, whatever eps is.
    change = where(total > zero, scaled, zero * gradient)
    return value - rate * change, total


def rmsprop(
    value: Number,
    nu: Number,
    gradient: Number,
    rate: Number,
    decay: Number,
    one_minus_decay: Number,
    eps: Number,
) -> Numbers:
    nu = one_minus_decay * (gradient * gradient) + decay * nu
    return value - rate * (gradient / sqrt(nu + eps)), nu


def rmsprop_with_momentum(
    value: Number,
    nu: Number,
    trace: Number,
    gradient: Number,
    rate: Number,
    decay: Number,
    one_minus_decay: Number,
    eps: Number,
    momentum: Number,
) -> Numbers:
    nu = one_minus_decay * (gradient * gradient) + decay * nu
    trace = momentum * trace - rate * (gradient / sqrt(nu + eps))
    return value + trace, nu, trace


def rmsprop_centered(
    value: Number,
    nu: Number,
    mu: Number,
    gradient: Number,
    rate: Number,
    decay: Number,
    one_minus_decay: Number,
    eps: Number,
) -> Numbers:
    nu = one_minus_decay * (gradient * gradient) + decay * nu
    mu = one_minus_decay * gradient + decay * mu
    return value - rate * (gradient / sqrt(nu - mu * mu + eps)), nu, mu


def rmsprop_centered_with_momentum(
    value: Number,
    nu: Number,
    mu: Number,
    trace: Number,
    gradient: Number,
    rate: Number,
    decay: Number,
    one_minus_decay: Number,
    eps: Number,
    momentum: Number,
) -> Numbers:
    nu = one_minus_decay * (gradient * gradient) + decay * nu
    mu = one_minus_decay * gradient + decay * mu
    trace = momentum * trace - rate * (gradient / sqrt(nu - mu * mu + eps))
    return value + trace, nu, mu, trace


def adadelta(
    value: Number,
    e_g: Number,
    e_x: Number,
    gradient: Number,
    rate: Number,
    rho: Number,
    one_minus_rho: Number,
    eps: Number,
) -> Numbers:
    e_g = one_minus_rho * (gradient * gradient) + rho * e_g
    change = sqrt(e_x + eps) / sqrt(e_g + eps) * gradient
    e_x = one_minus_rho * (change * change) + rho * e_x
    return value - rate * change, e_g, e_x


def adam(
    value: Number,
    mu: Number,
    nu: Number,
    gradient: Number,
    rate: Number,
    b1: Number,
    one_minus_b1: Number,
    correction_b1: Number,
    b2: Number,
    one_minus_b2: Number,
    correction_b2: Number,
    eps: Number,
    weight_decay: Number,
) -> Numbers:
    mu = one_minus_b1 * gradient + b1 * mu
    nu = one_minus_b2 * (gradient * gradient) + b2 * nu
    change = mu / correction_b1 / (sqrt(nu / correction_b2) + eps)
    return value - rate * (change + weight_decay * value), mu, nu


def nadam(
    value: Number,
    mu: Number,
    nu: Number,
    gradient: Number,
    rate: Number,
    b1: Number,
    one_minus_b1: Number,
    correction_b1: Number,
    next_correction_b1: Number,
    b2: Number,
    one_minus_b2: Number,
    correction_b2: Number,
    eps: Number,
) -> Numbers:
    mu = one_minus_b1 * gradient + b1 * mu
    nu = one_minus_b2 * (gradient * gradient) + b2 * nu
    ahead = b1 * (mu / next_correction_b1) + one_minus_b1 * (gradient / correction_b1)
    return value - rate * (ahead / (sqrt(nu / correction_b2) + eps)), mu, nu


def adamax(
    value: Number,
    mu: Number,
    nu: Number,
    gradient: Number,
    rate: Number,
    b1: Number,
    one_minus_b1: Number,
    correction_b1: Number,
    b2: Number,
    eps: Number,
) -> Numbers:
    mu = one_minus_b1 * gradient + b1 * mu
    nu = maximum(absolute(gradient) + eps, b2 * nu)
    return value - rate * (mu / correction_b1 / nu), mu, nu


def lion(
    value: Number,
    mu: Number,
    gradient: Number,
    rate: Number,
    b1: Number,
    one_minus_b1: Number,
    b2: Number,
    one_minus_b2: Number,
    weight_decay: Number,
) -> Numbers:
    change = sign(one_minus_b1 * gradient + b1 * mu)
    mu = one_minus_b2 * gradient + b2 * mu
    return value - rate * (change + weight_decay * value), mu


# Two-phase rules: between the phases the trust ratio of each whole parameter is computed.


def lamb_direction(
    mu: Number,
    nu: Number,
    value: Number,
    gradient: Number,
    b1: Number,
    one_minus_b1: Number,
    correction_b1: Number,
    b2: Number,
    one_minus_b2: Number,
    correction_b2: Number,
    eps: Number,
    weight_decay: Number,
) -> Numbers:
    mu = one_minus_b1 * gradient + b1 * mu
    nu = one_minus_b2 * (gradient * gradient) + b2 * nu
    change = mu / correction_b1 / (sqrt(nu / correction_b2) + eps)
    return mu, nu, change + weight_decay * value


def lars_direction(value: Number, gradient: Number, weight_decay: Number) -> Numbers:
    return (gradient + weight_decay * value,)


def lars(
    value: Number, trace: Number, gradient: Number, rate: Number, momentum: Number
) -> Numbers:
    """`gradient` is the direction, times the trust ratio."""
    trace = momentum * trace - rate * gradient
    return value + trace, trace


@dataclass(frozen=True, slots=True)
class Kernel:
    """A rule's function over arrays: `value`, `direction` (of a two-phase rule) or slots.

    `function` takes an element of each array of `reads`, the gradient, and `numbers`; it
    returns one for each array of `writes`.
    """

    function: Callable[..., Numbers]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    numbers: tuple[str, ...]

    @property
    def arrays(self) -> tuple[str, ...]:
        """All arrays: those that it writes, then those that it only reads."""
        return tuple(dict.fromkeys((*self.writes, *self.reads)))


def kernels_of(rule: str, hyper: Hyper) -> tuple[Kernel, ...]:
    """The kernels of a rule: one, or two for a two-phase rule, of which the first
    computes the update direction."""
    match rule:
        case "rmsprop":
            variants = (
                (rmsprop, rmsprop_with_momentum),
                (rmsprop_centered, rmsprop_centered_with_momentum),
            )
            variant = variants[bool(hyper["centered"])][bool(hyper["momentum"])]
            return (_kernel(variant),)
        case "adamw":
            return (_kernel(adam),)
        case "lamb":
            return _kernel(lamb_direction, ("mu", "nu", "direction")), _kernel(sgd)
        case "lars":
            return _kernel(lars_direction, ("direction",)), _kernel(lars)
    return (_kernel(globals()[rule]),)


def _kernel(
    function: Callable[..., Numbers], writes: tuple[str, ...] | None = None
) -> Kernel:
    names = tuple(signature(function).parameters)
    gradient = names.index("gradient")
    reads = names[:gradient]
    return Kernel(function, reads, writes or reads, names[gradient + 1 :])


def compute_numbers(
    kernel: Kernel,
    hyper: Hyper,
    step: int,
    rate: float,
    dtype: np.dtype[Any],
    decays: bool,
) -> npt.NDArray[Any]:
    """The numbers of a kernel in a step (from 1), rounded to the dtype it computes in.

    They are rounded where optax rounds them: in float32 the bias correction 1 - b**step
    is that of a float32 power, which differs from the exact one when b is near 1.
    """
    real = dtype.type

    def correction(name: str, step: int) -> Any:
        return real(1) - real(float(real(hyper[name])) ** step)

    def number(name: str) -> Any:
        if name.startswith("one_minus_"):
            return 1 - hyper[name.removeprefix("one_minus_")]
        if name.startswith("correction_"):
            return correction(name.removeprefix("correction_"), step)
        if name.startswith("next_correction_"):
            return correction(name.removeprefix("next_correction_"), step + 1)
        match name:
            case "rate":
                return rate
            case "weight_decay":
                return hyper.get(name, 0.0) if decays else 0.0
            case "zero":
                return 0.0
        return hyper[name]

    return np.array([number(name) for name in kernel.numbers]).astype(dtype)
