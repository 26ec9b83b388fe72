"""Activations."""

import jax.numpy as jnp
from op_use import Use


def plain_softmax(x, axis=-1):
    return jnp.exp(x) / jnp.exp(x).sum(axis, keepdims=True)


DIFFERENTIABLE = [
    Use("relu", ("float32[batch, 4]",)),
    Use("tanh", ("float32[batch, 4]",)),
    Use("sigmoid", ("float32[batch, 4]",)),
    Use("softmax", ("float32[batch, 4]",)),
    Use("softmax", ("float32[batch, 4]",), {"axis": 0}),
    Use("softmax", ("float32[batch, 4, 3]",), {"axis": 1}),
]

WITHOUT_GRADIENT: list[Use] = []

PLAIN = {
    "relu": lambda x: jnp.where(x > 0, x, 0.0),
    "tanh": lambda x: (jnp.exp(x) - jnp.exp(-x)) / (jnp.exp(x) + jnp.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + jnp.exp(-x)),
    "softmax": plain_softmax,
}
