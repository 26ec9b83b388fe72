"""Rules of optimizers, for one parameter or a block of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

Rule = Callable[[np.ndarray, np.ndarray, dict[str, Any], int, float], np.ndarray]
"""The new value: of the value, the gradient, the slots, the number of the update and the
learning rate."""


def sgd(
    value: np.ndarray, g: np.ndarray, slots: dict[str, Any], t: int, rate: float
) -> np.ndarray:
    """Stochastic gradient descent."""
    return value - rate * g


def adam(
    value: np.ndarray, g: np.ndarray, slots: dict[str, Any], t: int, rate: float
) -> np.ndarray:
    """Adam (Kingma and Ba, 2015)."""
    slots["m"] = 0.9 * slots.get("m", 0.0) + 0.1 * g
    slots["v"] = 0.999 * slots.get("v", 0.0) + 0.001 * g * g
    m, v = slots["m"] / (1 - 0.9**t), slots["v"] / (1 - 0.999**t)
    return value - rate * m / (np.sqrt(v) + 1e-8)


def lamb(
    value: np.ndarray, g: np.ndarray, slots: dict[str, Any], t: int, rate: float
) -> np.ndarray:
    """LAMB (You et al., 2020), for a whole parameter."""
    slots["m"] = 0.9 * slots.get("m", 0.0) + 0.1 * g
    slots["v"] = 0.999 * slots.get("v", 0.0) + 0.001 * g * g
    m, v = slots["m"] / (1 - 0.9**t), slots["v"] / (1 - 0.999**t)
    change = m / (np.sqrt(v) + 1e-6)
    return value - rate * _trust(value, change) * change


def lars(
    value: np.ndarray, g: np.ndarray, slots: dict[str, Any], t: int, rate: float
) -> np.ndarray:
    """LARS (You et al., 2017), for a whole parameter."""
    change = 0.001 * _trust(value, g) * g
    slots["trace"] = 0.9 * slots.get("trace", 0.0) + rate * change
    return value - slots["trace"]


def _trust(value: np.ndarray, change: np.ndarray) -> float:
    norms = np.linalg.norm(value), np.linalg.norm(change)
    return norms[0] / norms[1] if all(norms) else 1.0


def of_optax(make: Callable[[float], optax.GradientTransformation]) -> Rule:
    """Return the rule of an optax transformation, which `make` makes for a rate.

    The transformation updates one parameter, named "x".
    """

    def update(
        value: np.ndarray, g: np.ndarray, slots: dict[str, Any], t: int, rate: float
    ) -> np.ndarray:
        with jax.enable_x64(True):
            transform = make(rate)
            parameter, gradient = {"x": padded(value)}, {"x": padded(g)}
            if "state" not in slots:
                slots["state"] = transform.init(parameter)
            changes, slots["state"] = transform.update(
                gradient, slots["state"], parameter
            )
            new: Mapping[str, Any] = optax.apply_updates(parameter, changes)
            return unpadded(new["x"], value)

    return update


def padded(array: np.ndarray) -> jax.Array:
    """Return the elements of an array with zeros after them: so arrays of a few sizes are
    compiled for, and norms are the same."""
    size = 64
    while size < array.size:
        size *= 2
    return jnp.asarray(np.pad(np.ravel(array), (0, size - array.size)))


def unpadded(array: jax.Array, like: np.ndarray) -> np.ndarray:
    """Return an array of the shape of another one, from its padded elements."""
    return np.asarray(array)[: like.size].reshape(like.shape)
