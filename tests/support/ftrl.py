"""FTRL-Proximal as McMahan et al. (2013) write it, algorithm 1, in the form of optax."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax


def ftrl(
    learning_rate: Any,
    l1: float = 0.0,
    l2: float = 0.0,
    beta: float = 0.0,
    initial_accumulator_value: float = 0.1,
) -> optax.GradientTransformation:
    """Return the rule; its update is the new weight less the old one."""

    def init(params: Any) -> Any:
        n = jax.tree.map(lambda w: jnp.full_like(w, initial_accumulator_value), params)
        return 0, jax.tree.map(jnp.zeros_like, params), n

    def update(gradients: Any, state: Any, params: Any) -> Any:
        step, z, n = state
        alpha = learning_rate(step) if callable(learning_rate) else learning_rate

        def new_z(g: Any, w: Any, z: Any, n: Any) -> Any:
            sigma = (jnp.sqrt(n + g**2) - jnp.sqrt(n)) / alpha
            return z + g - sigma * w

        z = jax.tree.map(new_z, gradients, params, z, n)
        n = jax.tree.map(lambda g, n: n + g**2, gradients, n)

        def weight(z: Any, n: Any) -> Any:
            w = -(z - jnp.sign(z) * l1) / ((beta + jnp.sqrt(n)) / alpha + l2)
            return jnp.where(jnp.abs(z) <= l1, 0.0, w)

        changes = jax.tree.map(lambda z, n, w: weight(z, n) - w, z, n, params)
        return changes, (step + 1, z, n)

    return optax.GradientTransformation(init, update)
