"""The optimizer rules of `placer.config.optimizers` as optax transformations.

They are created inside the jitted update, so the learning rate may be a traced value.
Two-phase rules are two transformations, `direction_phase` and `apply_phase`; the trust
ratio between them is an op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import optax

Hyper = Mapping[str, Any]

_RULES: Mapping[str, Callable[..., optax.GradientTransformation]] = {
    "sgd": optax.sgd,
    "momentum": optax.sgd,
    "nesterov": partial(optax.sgd, nesterov=True),
    "adagrad": optax.adagrad,
    "rmsprop": optax.rmsprop,
    "adadelta": optax.adadelta,
    "adam": optax.adam,
    "adamw": optax.adamw,
    "adamax": optax.adamax,
    "nadam": optax.nadam,
    "lion": optax.lion,
}


def one_phase_rule(
    name: str, hyper: Hyper, decays: Sequence[bool], rate: Any
) -> optax.GradientTransformation:
    """Return a rule of one phase. `decays` has for each array whether weight decay
    applies to it."""
    arguments = dict(hyper)
    if "weight_decay" in arguments:
        arguments["mask"] = list(decays)
    if name == "rmsprop":  # optax writes "no trace" as None
        arguments["momentum"] = arguments["momentum"] or None
    rule: optax.GradientTransformation = _RULES[name](rate, **arguments)
    return rule


def direction_phase(
    name: str, hyper: Hyper, decays: Sequence[bool]
) -> optax.GradientTransformation:
    """Return the first phase of a two-phase rule: from gradients to update
    directions."""
    phase = optax.add_decayed_weights(hyper["weight_decay"], mask=list(decays))
    if name == "lamb":
        moments = hyper["b1"], hyper["b2"], hyper["eps"]
        phase = optax.chain(optax.scale_by_adam(*moments), phase)
    return phase


def apply_phase(name: str, hyper: Hyper, rate: Any) -> optax.GradientTransformation:
    """Return the second phase of a two-phase rule: from update directions, scaled by
    their trust ratios, to changes of the values."""
    phase = optax.scale_by_learning_rate(rate)
    if name == "lars":
        phase = optax.chain(phase, optax.trace(hyper["momentum"]))
    return phase
