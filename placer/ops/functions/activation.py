"""relu, tanh, sigmoid, softmax: backward from the result, or from a mask."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

Pair = tuple[jax.Array, jax.Array]


@jax.custom_vjp
def relu(x: jax.Array) -> jax.Array:
    return jnp.maximum(x, 0)


def _relu_forward(x: jax.Array) -> Pair:
    y = jnp.maximum(x, 0)
    return y, y > 0


def _relu_backward(positive: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    return (jnp.where(positive, dy, 0),)


relu.defvjp(_relu_forward, _relu_backward)


@jax.custom_vjp
def tanh(x: jax.Array) -> jax.Array:
    return jnp.tanh(x)


def _tanh_forward(x: jax.Array) -> Pair:
    y = jnp.tanh(x)
    return y, y


def _tanh_backward(y: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    return (dy * (1 - y) * (1 + y),)


tanh.defvjp(_tanh_forward, _tanh_backward)


@jax.custom_vjp
def sigmoid(x: jax.Array) -> jax.Array:
    return jax.lax.logistic(x)


def _sigmoid_forward(x: jax.Array) -> Pair:
    y = jax.lax.logistic(x)
    return y, y


def _sigmoid_backward(y: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    return (dy * y * (1 - y),)


sigmoid.defvjp(_sigmoid_forward, _sigmoid_backward)


def softmax(x: jax.Array, *, axis: int = -1) -> jax.Array:
    return _softmax(axis, x)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _softmax(axis: int, x: jax.Array) -> jax.Array:
    powers = jnp.exp(x - jnp.max(x, axis=axis, keepdims=True))
    return powers / jnp.sum(powers, axis=axis, keepdims=True)


def _softmax_forward(axis: int, x: jax.Array) -> Pair:
    y = _softmax(axis, x)
    return y, y


def _softmax_backward(axis: int, y: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    return (y * (dy - jnp.sum(dy * y, axis=axis, keepdims=True)),)


_softmax.defvjp(_softmax_forward, _softmax_backward)

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": relu,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "softmax": softmax,
}
"""What fc applies to its result, by the name in a spec."""
