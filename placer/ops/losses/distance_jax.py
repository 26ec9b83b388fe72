"""Losses of a prediction and a target of one shape, and the cosine of two vectors."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from placer.ops.elementwise.ordered_jax import order
from placer.ops.losses.loss_jax import Count, reduced

Pair = tuple[jax.Array, jax.Array]


def mean_squared_error(
    prediction: jax.Array,
    target: jax.Array,
    *,
    reduce: str = "mean",
    count: Count = None,
) -> jax.Array:
    return reduced(_squared_error(prediction, target), reduce, count)


@jax.custom_vjp
def _squared_error(prediction: jax.Array, target: jax.Array) -> jax.Array:
    return _squared_forward(prediction, target)[0]


def _squared_forward(prediction: jax.Array, target: jax.Array) -> Pair:
    error = prediction - target
    return error * error, error


def _squared_backward(error: jax.Array, dy: jax.Array) -> Pair:
    slope = 2 * error * dy
    return slope, -slope


_squared_error.defvjp(_squared_forward, _squared_backward)


def l1_loss(
    prediction: jax.Array,
    target: jax.Array,
    *,
    reduce: str = "mean",
    count: Count = None,
) -> jax.Array:
    return reduced(_absolute_error(prediction, target), reduce, count)


@jax.custom_vjp
def _absolute_error(prediction: jax.Array, target: jax.Array) -> jax.Array:
    return jnp.abs(prediction - target)


def _absolute_forward(prediction: jax.Array, target: jax.Array) -> Pair:
    return jnp.abs(prediction - target), order(prediction, target)


def _absolute_backward(sign: jax.Array, dy: jax.Array) -> Pair:
    slope = sign.astype(dy.dtype) * dy
    return slope, -slope


_absolute_error.defvjp(_absolute_forward, _absolute_backward)


def huber(
    prediction: jax.Array,
    target: jax.Array,
    *,
    reduce: str = "mean",
    delta: float = 1.0,
    count: Count = None,
) -> jax.Array:
    return reduced(_huber(delta, prediction, target), reduce, count)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _huber(delta: float, prediction: jax.Array, target: jax.Array) -> jax.Array:
    return _huber_forward(delta, prediction, target)[0]


def _huber_forward(delta: float, prediction: jax.Array, target: jax.Array) -> Pair:
    error = prediction - target
    near = jnp.clip(error, -delta, delta)
    return near * (error - near / 2), near


def _huber_backward(delta: float, near: jax.Array, dy: jax.Array) -> Pair:
    slope = near * dy
    return slope, -slope


_huber.defvjp(_huber_forward, _huber_backward)


def kl_div(
    log_prediction: jax.Array,
    target: jax.Array,
    *,
    reduce: str = "mean",
    count: Count = None,
) -> jax.Array:
    return reduced(_divergence(log_prediction, target), reduce, count)


@jax.custom_vjp
def _divergence(log_prediction: jax.Array, target: jax.Array) -> jax.Array:
    there = target != 0
    log_target = jnp.log(jnp.where(there, target, 1))
    # a prediction of 0, -inf here, counts nothing either where the target is 0
    each = jnp.where(there, target * (log_target - log_prediction), 0)
    return jnp.sum(each, axis=-1)


def _divergence_forward(
    log_prediction: jax.Array, target: jax.Array
) -> tuple[jax.Array, Pair]:
    return _divergence(log_prediction, target), (log_prediction, target)


def _divergence_backward(kept: Pair, dy: jax.Array) -> Pair:
    log_prediction, target = kept
    there = target != 0
    rise = jnp.where(there, jnp.log(jnp.where(there, target, 1)) + 1, 0)
    dy = dy[..., None]
    return -target * dy, (rise - log_prediction) * dy


_divergence.defvjp(_divergence_forward, _divergence_backward)


def cosine_similarity(
    a: jax.Array, b: jax.Array, *, axis: int = -1, epsilon: float = 1e-8
) -> jax.Array:
    # 1e-8 is 0 in float16: there it is the least normal number
    least = max(epsilon, 2.0**-14) if a.dtype == jnp.float16 else epsilon
    return _cosine(axis, least, a, b)


Cosine = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]


def _length(x: jax.Array, axis: int, least: float) -> jax.Array:
    return jnp.maximum(jnp.sqrt(jnp.sum(x * x, axis=axis)), least)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _cosine(axis: int, least: float, a: jax.Array, b: jax.Array) -> jax.Array:
    return _cosine_forward(axis, least, a, b)[0]


def _cosine_forward(
    axis: int, least: float, a: jax.Array, b: jax.Array
) -> tuple[jax.Array, Cosine]:
    of_a, of_b = _length(a, axis, least), _length(b, axis, least)
    u, v = a / jnp.expand_dims(of_a, axis), b / jnp.expand_dims(of_b, axis)
    cosine = jnp.sum(u * v, axis=axis)
    return cosine, (a, b, of_a, of_b, cosine)


def _cosine_backward(axis: int, least: float, kept: Cosine, dy: jax.Array) -> Pair:
    a, b = kept[:2]
    of_a, of_b, cosine, dy = (jnp.expand_dims(x, axis) for x in (*kept[2:], dy))
    u, v = a / of_a, b / of_b
    # a vector that counts as longer than it is does not turn: it grows
    along_u = jnp.where(of_a > least, cosine, 0) * u
    along_v = jnp.where(of_b > least, cosine, 0) * v
    return dy * (v - along_u) / of_a, dy * (u - along_v) / of_b


_cosine.defvjp(_cosine_forward, _cosine_backward)
