"""The optimizer rules of `placer.config.optimizers` as stages of compiled kernels.

A stage says which arrays its kernel changes and which numbers it takes. The numbers are
rounded to the kernel's dtype where optax rounds them: in float32 the bias correction
1 - b**step comes of a float32 power, and is far from the exact one when b is near 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Hyper = Mapping[str, float]
Real = type[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Moment:
    """When and how an update is made: its number from 1, its learning rate, the share
    of the value that decays, and the dtype it is computed in."""

    count: int
    rate: float
    weight_decay: float
    real: Real

    def left(self, b: float) -> Any:
        """1 - b**count, what a mean that began at zero has taken in so far."""
        return self._left(b, self.count)

    def left_next(self, b: float) -> Any:
        """The same, one update later."""
        return self._left(b, self.count + 1)

    def _left(self, b: float, count: int) -> Any:
        real = self.real
        return real(1) - real(float(real(b)) ** count)


@dataclass(frozen=True, slots=True)
class Stage:
    """One pass over all elements: the kernel, the arrays it is given (`values`,
    `direction` or slots; it changes the first and the slots), and its numbers after the
    scale."""

    kernel: str
    arrays: tuple[str, ...]
    numbers: Callable[[Hyper, Moment], tuple[float, ...]]


def stages(name: str, hyper: Hyper) -> tuple[Stage, ...]:
    """The stages of a rule: one, or two where it goes by a direction."""
    if name == "rmsprop":
        return (_rmsprop(hyper),)
    return _STAGES[name]


def _rmsprop(hyper: Hyper) -> Stage:
    slots = ["nu", *["mu"] * bool(hyper["centered"])]
    kernel = "rmsprop_centered" if hyper["centered"] else "rmsprop"
    if hyper["momentum"]:
        slots.append("trace")
        kernel += "_trace"

    def numbers(h: Hyper, now: Moment) -> tuple[float, ...]:
        decayed = now.rate, h["decay"], 1 - h["decay"], h["eps"]
        return (*decayed, h["momentum"]) if h["momentum"] else decayed

    return Stage(kernel, ("values", *slots), numbers)


def _traced(h: Hyper, now: Moment) -> tuple[float, ...]:
    return now.rate, h["momentum"]


def _moments(h: Hyper, now: Moment) -> tuple[float, ...]:
    b1, b2 = h["b1"], h["b2"]
    return b1, 1 - b1, now.left(b1), b2, 1 - b2, now.left(b2), h["eps"]


def _nadam(h: Hyper, now: Moment) -> tuple[float, ...]:
    b1, left1, count1, *second = _moments(h, now)
    return now.rate, b1, left1, count1, now.left_next(b1), *second


def _adamax(h: Hyper, now: Moment) -> tuple[float, ...]:
    b1 = h["b1"]
    return now.rate, b1, 1 - b1, now.left(b1), h["b2"], h["eps"]


def _lion(h: Hyper, now: Moment) -> tuple[float, ...]:
    b1, b2 = h["b1"], h["b2"]
    return now.rate, b1, 1 - b1, b2, 1 - b2, now.weight_decay


_ADAM = Stage(
    "adam",
    ("values", "mu", "nu"),
    lambda h, now: (now.rate, *_moments(h, now), now.weight_decay),
)
_SGD = Stage("sgd", ("values",), lambda h, now: (now.rate,))
_STAGES: dict[str, tuple[Stage, ...]] = {
    "sgd": (_SGD,),
    "momentum": (Stage("momentum", ("values", "trace"), _traced),),
    "nesterov": (Stage("nesterov", ("values", "trace"), _traced),),
    "adagrad": (
        Stage(
            "adagrad",
            ("values", "sum_of_squares"),
            lambda h, now: (now.rate, h["eps"], 0.0),
        ),
    ),
    "adadelta": (
        Stage(
            "adadelta",
            ("values", "e_g", "e_x"),
            lambda h, now: (now.rate, h["rho"], 1 - h["rho"], h["eps"]),
        ),
    ),
    "adam": (_ADAM,),
    "adamw": (_ADAM,),
    "adamax": (Stage("adamax", ("values", "mu", "nu"), _adamax),),
    "nadam": (Stage("nadam", ("values", "mu", "nu"), _nadam),),
    "lion": (Stage("lion", ("values", "mu"), _lion),),
    "lamb": (
        Stage(
            "lamb_direction",
            ("direction", "values", "mu", "nu"),
            lambda h, now: (*_moments(h, now), now.weight_decay),
        ),
        _SGD,
    ),
    "lars": (
        Stage(
            "lars_direction",
            ("direction", "values"),
            lambda h, now: (now.weight_decay,),
        ),
        Stage("lars", ("values", "trace"), _traced),
    ),
}
