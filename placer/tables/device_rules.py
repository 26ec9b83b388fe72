"""The optimizer rules of `placer.config.optimizers` as optax has them, for JAX arrays.

The learning rate may be traced: it is made anew for each update. Rules with a direction
come in two, `direction` and `follower`; the trust ratio between them is an op.
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


def one_stage(
    name: str, hyper: Hyper, decays: Sequence[bool], rate: Any
) -> optax.GradientTransformation:
    """A rule of one stage. `decays` says of each array whether weight decay is for it."""
    given = dict(hyper)
    if "weight_decay" in given:
        given["mask"] = list(decays)
    if name == "rmsprop":  # None is "there is no trace"
        given["momentum"] = given["momentum"] or None
    made: optax.GradientTransformation = _RULES[name](rate, **given)
    return made


def direction(
    name: str, hyper: Hyper, decays: Sequence[bool]
) -> optax.GradientTransformation:
    """The first stage of a rule with a direction."""
    made = optax.add_decayed_weights(hyper["weight_decay"], mask=list(decays))
    if name == "lamb":
        moments = hyper["b1"], hyper["b2"], hyper["eps"]
        made = optax.chain(optax.scale_by_adam(*moments), made)
    return made


def follower(name: str, hyper: Hyper, rate: Any) -> optax.GradientTransformation:
    """The second: what is made of a direction once it is scaled by its trust ratio."""
    made = optax.scale_by_learning_rate(rate)
    if name == "lars":
        made = optax.chain(made, optax.trace(hyper["momentum"]))
    return made
