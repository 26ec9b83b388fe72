"""Losses of a prediction and a target of one shape, and cosine_similarity."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from placer.ops.common.gradient_jax import differentiable
from placer.ops.elementwise.ordered_jax import compare
from placer.ops.losses.loss_jax import Count, make_loss, reduce_losses

Pair = tuple[jax.Array, jax.Array]


def _squared_forward(prediction: jax.Array, target: jax.Array) -> Pair:
    error = prediction - target
    return error * error, error


def _squared_backward(error: jax.Array, dy: jax.Array) -> Pair:
    # loss = e² with e = prediction - target, so dprediction = 2e · dy = -dtarget
    slope = 2 * error * dy
    return slope, -slope


mean_squared_error = make_loss(differentiable(_squared_forward, _squared_backward))


def _absolute(prediction: jax.Array, target: jax.Array) -> jax.Array:
    return jnp.abs(prediction - target)


def _absolute_forward(prediction: jax.Array, target: jax.Array) -> Pair:
    return _absolute(prediction, target), compare(prediction, target)


def _absolute_backward(sign: jax.Array, dy: jax.Array) -> Pair:
    # loss = |prediction - target|, so dprediction = sign · dy = -dtarget
    slope = sign.astype(dy.dtype) * dy
    return slope, -slope


l1_loss = make_loss(
    differentiable(_absolute_forward, _absolute_backward, function=_absolute)
)


def huber(
    prediction: jax.Array,
    target: jax.Array,
    *,
    reduce: str = "mean",
    delta: float = 1.0,
    count: Count = None,
) -> jax.Array:
    return reduce_losses(_huber(delta, prediction, target), reduce, count)


def _huber_forward(delta: float, prediction: jax.Array, target: jax.Array) -> Pair:
    # c · (e - c / 2), where c is e clipped to ±delta: e² / 2 if |e| ≤ delta, else
    # delta · (|e| - delta / 2)
    error = prediction - target
    clipped = jnp.clip(error, -delta, delta)
    return clipped * (error - clipped / 2), clipped


def _huber_backward(delta: float, clipped: jax.Array, dy: jax.Array) -> Pair:
    # dprediction = c · dy = -dtarget
    slope = clipped * dy
    return slope, -slope


_huber = differentiable(_huber_forward, _huber_backward, static=1)


def _divergence_forward(
    log_prediction: jax.Array, target: jax.Array
) -> tuple[jax.Array, Pair]:
    nonzero = target != 0
    log_target = jnp.log(jnp.where(nonzero, target, 1))
    # Not target · (…) alone: with a target of 0, a log_prediction of -inf would give
    # NaN
    terms = jnp.where(nonzero, target * (log_target - log_prediction), 0)
    return jnp.sum(terms, axis=-1), (log_prediction, target)


def _divergence_backward(saved: Pair, dy: jax.Array) -> Pair:
    # dlog_prediction = -target · dy; dtarget = (log target + 1 - log_prediction) · dy
    log_prediction, target = saved
    nonzero = target != 0
    d_entropy = jnp.where(nonzero, jnp.log(jnp.where(nonzero, target, 1)) + 1, 0)
    dy = dy[..., None]
    return -target * dy, (d_entropy - log_prediction) * dy


kl_div = make_loss(differentiable(_divergence_forward, _divergence_backward))


def cosine_similarity(
    a: jax.Array, b: jax.Array, *, axis: int = -1, epsilon: float = 1e-8
) -> jax.Array:
    # 1e-8 rounds to 0 in float16, whose smallest normal number is 2⁻¹⁴
    minimum = max(epsilon, 2.0**-14) if a.dtype == jnp.float16 else epsilon
    return _cosine(axis, minimum, a, b)


Cosine = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]


def _length(x: jax.Array, axis: int, minimum: float) -> jax.Array:
    return jnp.maximum(jnp.sqrt(jnp.sum(x * x, axis=axis)), minimum)


def _cosine_forward(
    axis: int, minimum: float, a: jax.Array, b: jax.Array
) -> tuple[jax.Array, Cosine]:
    length_a, length_b = _length(a, axis, minimum), _length(b, axis, minimum)
    u, v = a / jnp.expand_dims(length_a, axis), b / jnp.expand_dims(length_b, axis)
    cosine = jnp.sum(u * v, axis=axis)
    return cosine, (a, b, length_a, length_b, cosine)


def _cosine_backward(axis: int, minimum: float, saved: Cosine, dy: jax.Array) -> Pair:
    # cos = Σ u · v with u = a / |a|, so da = dy · (v - cos · u) / |a|. If the length is
    # replaced by the minimum, it is constant, and da = dy · v / minimum.
    a, b = saved[:2]
    length_a, length_b, cosine, dy = (
        jnp.expand_dims(x, axis) for x in (*saved[2:], dy)
    )
    u, v = a / length_a, b / length_b
    along_u = jnp.where(length_a > minimum, cosine, 0) * u
    along_v = jnp.where(length_b > minimum, cosine, 0) * v
    return dy * (v - along_u) / length_a, dy * (u - along_v) / length_b


_cosine = differentiable(_cosine_forward, _cosine_backward, static=2)
