"""The optimizer rules of `placer.graph.optimizers`, by optax, on arrays of any shape.

A rule is elementwise, so the update of a slice is a slice of the update. The learning
rate and the number of updates so far are arguments: optax's own count is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import optax

from placer.graph.optimizers import complete

Slots = tuple[jax.Array, ...]
Update = Callable[
    [jax.Array, jax.Array, Slots, jax.Array, jax.Array], tuple[jax.Array, Slots]
]


def rule(name: str, hyper: Mapping[str, float]) -> Update:
    """The pure function of a rule.

    `(values, gradients, slots, step, learning_rate) -> (values, slots)`: `slots` in the
    order of the rule's declaration, each like `values`; `step`, int32[], counts the
    updates made before this one; `learning_rate` is a scalar of the values' dtype.
    """
    return _RULES[name](**complete(name, hyper))


def _sgd() -> Update:
    def update(
        values: jax.Array,
        gradients: jax.Array,
        slots: Slots,
        step: jax.Array,
        learning_rate: jax.Array,
    ) -> tuple[jax.Array, Slots]:
        return values - learning_rate * gradients, ()

    return update


def _momentum(momentum: float) -> Update:
    transform = optax.trace(decay=momentum)

    def update(
        values: jax.Array,
        gradients: jax.Array,
        slots: Slots,
        step: jax.Array,
        learning_rate: jax.Array,
    ) -> tuple[jax.Array, Slots]:
        change, state = transform.update(gradients, optax.TraceState(trace=slots[0]))
        return values - learning_rate * change, (state.trace,)

    return update


def _adam(b1: float, b2: float, eps: float) -> Update:
    transform = optax.scale_by_adam(b1=b1, b2=b2, eps=eps)

    def update(
        values: jax.Array,
        gradients: jax.Array,
        slots: Slots,
        step: jax.Array,
        learning_rate: jax.Array,
    ) -> tuple[jax.Array, Slots]:
        mu, nu = slots
        state = optax.ScaleByAdamState(count=jnp.asarray(step), mu=mu, nu=nu)
        change, state = transform.update(gradients, state)
        return values - learning_rate * change, (state.mu, state.nu)

    return update


_RULES: dict[str, Callable[..., Update]] = {
    "adam": _adam,
    "momentum": _momentum,
    "sgd": _sgd,
}
