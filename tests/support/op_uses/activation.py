"""Activations."""

import math

import jax
import jax.numpy as jnp

from support.op_use import Use


def plain_softmax(x, axis=-1):
    return jnp.exp(x) / jnp.exp(x).sum(axis, keepdims=True)


def plain_gelu(x, approximate=False):
    if approximate:
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return 0.5 * x * (1 + jnp.tanh(inner))
    return 0.5 * x * (1 + jax.scipy.special.erf(x / math.sqrt(2)))


def plain_leaky_relu(x, negative_slope=0.01):
    return jnp.where(x > 0, x, negative_slope * x)


ALONG = [
    ("float32[batch, 4]", {}),
    ("float32[batch, 4]", {"axis": 0}),
    ("float32[batch, 4, 3]", {"axis": 1}),
]

DIFFERENTIABLE = [
    Use("relu", ("float32[batch, 4]",)),
    Use("leaky_relu", ("float32[batch, 4]",)),
    Use("leaky_relu", ("float32[batch, 4]",), {"negative_slope": 0.3}),
    Use("elu", ("float32[batch, 4]",)),
    Use("elu", ("float32[batch, 4]",), {"alpha": 0.4}),
    Use("gelu", ("float32[batch, 4]",)),
    Use("gelu", ("float32[batch, 4]",), {"approximate": True}),
    Use("silu", ("float32[batch, 4]",)),
    Use("softplus", ("float32[batch, 4]",)),
    Use("tanh", ("float32[batch, 4]",)),
    Use("sigmoid", ("float32[batch, 4]",)),
    *(Use("softmax", (operand,), attrs) for operand, attrs in ALONG),
    *(Use("log_softmax", (operand,), attrs) for operand, attrs in ALONG),
]

WITHOUT_GRADIENT: list[Use] = []

PLAIN = {
    "relu": lambda x: jnp.where(x > 0, x, 0.0),
    "leaky_relu": plain_leaky_relu,
    "elu": lambda x, alpha=1.0: jnp.where(x > 0, x, alpha * (jnp.exp(x) - 1)),
    "gelu": plain_gelu,
    "silu": lambda x: x / (1 + jnp.exp(-x)),
    "softplus": lambda x: jnp.log(1 + jnp.exp(x)),
    "tanh": lambda x: (jnp.exp(x) - jnp.exp(-x)) / (jnp.exp(x) + jnp.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + jnp.exp(-x)),
    "softmax": plain_softmax,
    "log_softmax": lambda x, axis=-1: jnp.log(plain_softmax(x, axis)),
}
