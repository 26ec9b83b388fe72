"""The section `train` of a spec with optax: clipping, optimizers, schedules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

from support.ftrl import ftrl

Arrays = Mapping[str, Any]
Transform = optax.GradientTransformation


@dataclass(frozen=True)
class OptimizerGroup:
    """The parameters of one optimizer, with its clipping and its update.

    `averaged` returns the parameters for evaluations, given the state and the parameters.
    """

    names: tuple[str, ...]
    clip: Callable[[Arrays], Arrays]
    update: Transform
    averaged: Callable[[Any, Arrays], Arrays] = lambda state, params: params


@dataclass(frozen=True)
class Recipe:
    """Computes new parameters from gradients."""

    clip: Callable[[Arrays], Arrays]
    groups: tuple[OptimizerGroup, ...]

    def init(self, trained: Arrays) -> list[Any]:
        """Return the initial state of every group."""
        return [g.update.init(_select(g.names, trained)) for g in self.groups]

    def step(
        self, gradients: Arrays, state: list[Any], trained: Arrays
    ) -> tuple[dict[str, Any], list[Any]]:
        """Return the new parameters and states."""
        gradients, new, states = self.clip(gradients), {}, []
        for group, group_state in zip(self.groups, state, strict=True):
            mine = _select(group.names, trained)
            clipped = group.clip(_select(group.names, gradients))
            changes, group_state = group.update.update(clipped, group_state, mine)
            new |= optax.apply_updates(mine, changes)
            states.append(group_state)
        return new, states

    def evaluated(self, state: list[Any], trained: Arrays) -> dict[str, Any]:
        """Return the parameters for evaluations."""
        return {
            name: value
            for group, group_state in zip(self.groups, state, strict=True)
            for name, value in group.averaged(
                group_state, _select(group.names, trained)
            ).items()
        }


def _select(names: tuple[str, ...], arrays: Arrays) -> dict[str, Any]:
    return {name: arrays[name] for name in names}


def read_recipe(
    spec: Mapping[str, Any],
    trained: Arrays,
    steps: int,
    functions: Mapping[str, Callable[..., Any]],
) -> Recipe:
    """Read the section `train` of a spec, for these parameters and `steps` steps.

    `functions` has the functions of optax optimizers.
    """
    groups = []
    for entry, names in optimizer_groups(spec, trained):
        if entry["op"] == "optax":
            assert "learning_rate" not in entry
            update = functions[entry["fn"]]()
            group = OptimizerGroup(names, read_clip(entry), update)
            if "eval_params" in entry:
                group = replace(group, averaged=functions[entry["eval_params"]])
            groups.append(group)
            continue
        decays = {n: parameter_rule(spec, n).get("decay", True) for n in names}
        rates = [schedule(entry["learning_rate"])(step) for step in range(steps)]
        groups.append(
            OptimizerGroup(names, read_clip(entry), _by_step(entry, rates, decays))
        )
    return Recipe(read_clip(spec["train"]), tuple(groups))


def optimizer_groups(
    spec: Mapping[str, Any], trained: Iterable[str]
) -> list[tuple[Mapping[str, Any], tuple[str, ...]]]:
    """Return each entry of `optimizer` with the parameters that it updates."""
    entries = spec["train"]["optimizer"]
    remaining, groups = list(trained), []
    for entry in [entries] if isinstance(entries, dict) else entries:
        names = [n for n in remaining if fnmatchcase(n, entry.get("match", "*"))]
        remaining = [n for n in remaining if n not in names]
        groups.append((entry, tuple(names)))
    return groups


def parameter_rule(spec: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the first entry of `parameters` that matches a name, or an empty one."""
    rules = spec.get("parameters", [])
    return next((r for r in rules if fnmatchcase(name, r["match"])), {})


def _by_step(
    entry: Mapping[str, Any], rates: list[float], decays: Mapping[str, bool]
) -> Transform:
    """Return the rule of an optimizer with the learning rate of each step."""
    table = jnp.asarray(rates)
    return read_rule(entry, lambda count: table[count], decays)


def read_rule(
    entry: Mapping[str, Any], rate: Callable[[Any], Any], decays: Mapping[str, bool]
) -> Transform:
    """Return the rule of an optimizer, for parameters of which some have weight decay."""
    kind = entry["op"]
    known = {k: v for k, v in entry.items() if k not in _COMMON}
    make = OPTIMIZERS[kind]
    if kind in ("adamw", "lion", "lamb"):
        known["mask"] = dict(decays)
    if kind == "lars":
        known["weight_decay_mask"] = dict(decays)
    if kind == "rmsprop":
        known["momentum"] = known.get("momentum") or None
    return make(rate, **known)


_COMMON = (
    *("op", "learning_rate", "place", "update", "match", "clip"),
    *("shard_state", "all_reduce", "sum"),
)
OPTIMIZERS: dict[str, Callable[..., Transform]] = {
    "sgd": optax.sgd,
    "momentum": lambda rate, momentum=0.9: optax.sgd(rate, momentum),
    "nesterov": lambda rate, momentum=0.9: optax.sgd(rate, momentum, nesterov=True),
    "adagrad": optax.adagrad,
    "rmsprop": optax.rmsprop,
    "adadelta": optax.adadelta,
    "adam": optax.adam,
    "adamw": optax.adamw,
    "adamax": optax.adamax,
    "nadam": optax.nadam,
    "lion": optax.lion,
    "lamb": optax.lamb,
    "lars": optax.lars,
    "ftrl": ftrl,
}


def read_clip(entry: Mapping[str, Any]) -> Callable[[Arrays], Arrays]:
    """Return the function that clips all gradients of an entry."""
    if "clip" not in entry:
        return lambda gradients: gradients
    ((how, bound),) = entry["clip"].items()
    if how == "value":
        return lambda gradients: _apply(optax.clip(bound), gradients)
    one = optax.clip_by_global_norm(bound)
    if how == "global_norm":
        return lambda gradients: _apply(one, gradients)
    return lambda gradients: {n: _apply(one, g) for n, g in gradients.items()}


def _apply(transform: Transform, gradients: Any) -> Any:
    return transform.update(gradients, transform.init(gradients))[0]


# Schedules.

Schedule = Callable[[int], float]


def schedule(spec: Any) -> Schedule:
    """Return a learning rate of a spec as a function of the step, from 0."""
    if not isinstance(spec, dict):
        return lambda step: spec
    ((name, body),) = spec.items()
    if name in _OWN_SCHEDULES and (name != "polynomial" or body.get("cycle")):
        return _OWN_SCHEDULES[name](**body)
    rate = _optax(name, body)
    # optax computes in the dtype of the count.
    return lambda step: float(rate(jnp.asarray(step, float)))


def _optax(name: str, body: Mapping[str, Any]) -> Any:
    match name:
        case "exponential":
            stairs = body.get("staircase", False)
            return optax.exponential_decay(
                body["init"], body["steps"], body["rate"], staircase=stairs
            )
        case "linear":
            return optax.linear_schedule(body["init"], body["end"], body["steps"])
        case "polynomial":
            power = body.get("power", 1)
            ends = body["init"], body["end"]
            return optax.polynomial_schedule(*ends, power, body["steps"])
        case "cosine":
            alpha = body.get("alpha", 0.0)
            return optax.cosine_decay_schedule(body["init"], body["steps"], alpha)
        case "piecewise":
            constants = [optax.constant_schedule(value) for value in body["values"]]
            return optax.join_schedules(constants, body["boundaries"])
    raise KeyError(name)


def _cyclic_polynomial(init, end, steps, power=1.0, cycle=True):
    """A polynomial decay that starts again, which optax does not have."""

    def rate(t):
        whole = steps * max(1, math.ceil(t / steps))
        return (init - end) * (1 - t / whole) ** power + end

    return rate


def _natural_exp(init, rate, steps, staircase=False):
    return lambda t: init * math.exp(-rate * (t // steps if staircase else t / steps))


def _inverse_time(init, rate, steps, staircase=False):
    return lambda t: init / (1 + rate * (t // steps if staircase else t / steps))


def _noam(size, warmup, factor=1.0):
    return lambda t: factor / size**0.5 * min((t + 1) ** -0.5, (t + 1) * warmup**-1.5)


def _warmup(steps, then, **ends):
    low, after = ends.get("from", 0.0), schedule(then)
    return lambda t: (
        low + (after(0) - low) * t / steps if t < steps else after(t - steps)
    )


def _linear_scaling(batch, then, base_batch=256, warmup=0):
    by, after = batch / base_batch, schedule(then)
    low = after(0)
    return lambda t: (
        low + (by * low - low) * t / warmup if t < warmup else by * after(t - warmup)
    )


_OWN_SCHEDULES = {
    "polynomial": _cyclic_polynomial,
    "natural_exp": _natural_exp,
    "inverse_time": _inverse_time,
    "noam": _noam,
    "warmup": _warmup,
    "linear_scaling": _linear_scaling,
}


_LINEAR_RULES = ("sgd", "momentum", "nesterov")
"""Rules whose update is proportional to the gradient."""


def depends_on_rounding(
    spec: Mapping[str, Any], gradients: Mapping[str, np.ndarray]
) -> bool:
    """Whether an update depends on a gradient that is zero except for rounding errors.

    lion uses signs, other rules divide by the size of the gradient, lamb and lars scale
    the update of a parameter to its norm.
    """
    for entry, names in optimizer_groups(spec, gradients):
        sizes = [np.abs(gradients[name]) for name in names]
        if entry["op"] in ("lamb", "lars"):
            if any(0 < np.linalg.norm(size) < 1e-7 for size in sizes):
                return True
        elif entry["op"] not in _LINEAR_RULES:
            # Smaller gradients are negligible next to the epsilon in the denominator.
            low, high = (0, 1e-10) if entry["op"] == "lion" else (1e-16, 1e-12)
            if any(np.any((size > low) & (size < high)) for size in sizes):
                return True
    return False
