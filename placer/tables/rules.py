"""The optimizer rules of `placer.config.optimizers` as phases of compiled kernels.

A `KernelPhase` names a kernel, its arrays and its coefficients. Coefficients are
rounded to the kernel's dtype at the same points where optax rounds: in float32 the bias
correction 1 - b**step uses a float32 power, which is far from the exact value for b
near 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Hyper = Mapping[str, float]
ScalarType = type[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class UpdateContext:
    """The step of an update and what depends on it.

    Attributes:
        step: the number of the update, from 1.
        learning_rate: the learning rate at this step.
        weight_decay: the share of the value that decays; 0 for blocks without decay.
        dtype: the scalar type in which the kernel computes.
    """

    step: int
    learning_rate: float
    weight_decay: float
    dtype: ScalarType

    def bias_correction(self, b: float) -> Any:
        """Return 1 - b**step: the weight of all gradients so far in a running mean of
        decay b that starts at zero."""
        return self._bias_correction(b, self.step)

    def next_bias_correction(self, b: float) -> Any:
        """Return the bias correction one step later."""
        return self._bias_correction(b, self.step + 1)

    def _bias_correction(self, b: float, step: int) -> Any:
        # Rounded to `dtype` as optax does: b, its power and the difference.
        dtype = self.dtype
        return dtype(1) - dtype(float(dtype(b)) ** step)


@dataclass(frozen=True, slots=True)
class KernelPhase:
    """One pass of a kernel over all elements of a table.

    Attributes:
        kernel: the name of the kernel in `kernels.py`.
        arrays: the kernel's arrays in order: `values`, `direction` or names of slots.
            The kernel changes the first one and the slots.
        coefficients: computes the kernel's coefficients after the scale.
    """

    kernel: str
    arrays: tuple[str, ...]
    coefficients: Callable[[Hyper, UpdateContext], tuple[float, ...]]


def kernel_phases(name: str, hyper: Hyper) -> tuple[KernelPhase, ...]:
    """Return the phases of a rule: one, or two for a two-phase rule."""
    if name == "rmsprop":
        return (_rmsprop(hyper),)
    return _PHASES[name]


def _rmsprop(hyper: Hyper) -> KernelPhase:
    slots = ["nu", *["mu"] * bool(hyper["centered"])]
    kernel = "rmsprop_centered" if hyper["centered"] else "rmsprop"
    if hyper["momentum"]:
        slots.append("trace")
        kernel += "_trace"

    def coefficients(h: Hyper, context: UpdateContext) -> tuple[float, ...]:
        common = context.learning_rate, h["decay"], 1 - h["decay"], h["eps"]
        return (*common, h["momentum"]) if h["momentum"] else common

    return KernelPhase(kernel, ("values", *slots), coefficients)


def _momentum(h: Hyper, context: UpdateContext) -> tuple[float, ...]:
    return context.learning_rate, h["momentum"]


def _moments(h: Hyper, context: UpdateContext) -> tuple[float, ...]:
    b1, b2 = h["b1"], h["b2"]
    return (
        b1,
        1 - b1,
        context.bias_correction(b1),
        b2,
        1 - b2,
        context.bias_correction(b2),
        h["eps"],
    )


def _nadam(h: Hyper, context: UpdateContext) -> tuple[float, ...]:
    b1, one_minus_b1, bias_correction1, *second = _moments(h, context)
    return (
        context.learning_rate,
        b1,
        one_minus_b1,
        bias_correction1,
        context.next_bias_correction(b1),
        *second,
    )


def _adamax(h: Hyper, context: UpdateContext) -> tuple[float, ...]:
    b1 = h["b1"]
    return (
        context.learning_rate,
        b1,
        1 - b1,
        context.bias_correction(b1),
        h["b2"],
        h["eps"],
    )


def _lion(h: Hyper, context: UpdateContext) -> tuple[float, ...]:
    b1, b2 = h["b1"], h["b2"]
    return context.learning_rate, b1, 1 - b1, b2, 1 - b2, context.weight_decay


_ADAM = KernelPhase(
    "adam",
    ("values", "mu", "nu"),
    lambda h, context: (
        context.learning_rate,
        *_moments(h, context),
        context.weight_decay,
    ),
)
_SGD = KernelPhase("sgd", ("values",), lambda h, context: (context.learning_rate,))
_PHASES: dict[str, tuple[KernelPhase, ...]] = {
    "sgd": (_SGD,),
    "momentum": (KernelPhase("momentum", ("values", "trace"), _momentum),),
    "nesterov": (KernelPhase("nesterov", ("values", "trace"), _momentum),),
    "adagrad": (
        KernelPhase(
            "adagrad",
            ("values", "sum_of_squares"),
            lambda h, context: (context.learning_rate, h["eps"], 0.0),
        ),
    ),
    "adadelta": (
        KernelPhase(
            "adadelta",
            ("values", "e_g", "e_x"),
            lambda h, context: (
                context.learning_rate,
                h["rho"],
                1 - h["rho"],
                h["eps"],
            ),
        ),
    ),
    "adam": (_ADAM,),
    "adamw": (_ADAM,),
    "adamax": (KernelPhase("adamax", ("values", "mu", "nu"), _adamax),),
    "nadam": (KernelPhase("nadam", ("values", "mu", "nu"), _nadam),),
    "lion": (KernelPhase("lion", ("values", "mu"), _lion),),
    "lamb": (
        KernelPhase(
            "lamb_direction",
            ("direction", "values", "mu", "nu"),
            lambda h, context: (*_moments(h, context), context.weight_decay),
        ),
        _SGD,
    ),
    "lars": (
        KernelPhase(
            "lars_direction",
            ("direction", "values"),
            lambda h, context: (context.weight_decay,),
        ),
        KernelPhase("lars", ("values", "trace"), _momentum),
    ),
}
