"""Losses of a prediction and a target of the same shape, and cosine_similarity."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from ..common.gradient_jax import WithBackward, with_gradient
from ..elementwise.ordered_jax import compare
from .loss_jax import make_loss

Pair = tuple[jax.Array, jax.Array]


def _of_difference(
    gradient: Callable[[jax.Array], jax.Array],
) -> Callable[[jax.Array], Pair]:
    """Return the backward of prediction - target, given the cotangent of prediction."""

    def backward(dy: jax.Array) -> Pair:
        d_prediction = gradient(dy)
        return d_prediction, -d_prediction

    return backward


@make_loss
@with_gradient
def mean_squared_error(prediction: jax.Array, target: jax.Array) -> WithBackward:
    error = prediction - target
    return error * error, _of_difference(lambda dy: 2 * error * dy)


@make_loss
@with_gradient
def l1_loss(prediction: jax.Array, target: jax.Array) -> WithBackward:
    sign = compare(prediction, target)
    losses = jnp.abs(prediction - target)
    return losses, _of_difference(lambda dy: sign.astype(dy.dtype) * dy)


@make_loss
@with_gradient
def huber(
    prediction: jax.Array, target: jax.Array, *, delta: float = 1.0
) -> WithBackward:
    # The loss c · (e - c / 2), with c = e clipped to ±delta, equals e² / 2 if |e| ≤
    # delta, else delta · (|e| - delta / 2)
    error = prediction - target
    clipped = jnp.clip(error, -delta, delta)
    losses = clipped * (error - clipped / 2)
    return losses, _of_difference(lambda dy: clipped * dy)


@make_loss
@with_gradient
def kl_div(log_prediction: jax.Array, target: jax.Array) -> WithBackward:
    nonzero = target != 0
    log_target = jnp.log(jnp.where(nonzero, target, 1))
    # Use where: for a target of 0 and a log_prediction of -inf, the product is NaN
    terms = jnp.where(nonzero, target * (log_target - log_prediction), 0)

    def backward(dy: jax.Array) -> Pair:
        # dlog_prediction = -target · dy;
        # dtarget = (log target + 1 - log_prediction) · dy
        nonzero = target != 0
        d_entropy = jnp.where(nonzero, jnp.log(jnp.where(nonzero, target, 1)) + 1, 0)
        dy = dy[..., None]
        return -target * dy, (d_entropy - log_prediction) * dy

    return jnp.sum(terms, axis=-1), backward


@with_gradient
def cosine_similarity(
    a: jax.Array, b: jax.Array, *, axis: int = -1, epsilon: float = 1e-8
) -> WithBackward:
    # 1e-8 rounds to 0 in float16, whose smallest normal number is 2⁻¹⁴
    minimum = max(epsilon, 2.0**-14) if a.dtype == jnp.float16 else epsilon
    lengths = [
        jnp.maximum(jnp.sqrt(jnp.sum(x * x, axis=axis)), minimum) for x in (a, b)
    ]
    u, v = (
        x / jnp.expand_dims(length, axis)
        for x, length in zip((a, b), lengths, strict=True)
    )
    cosine = jnp.sum(u * v, axis=axis)

    def backward(dy: jax.Array) -> Pair:
        # cos = Σ u · v with u = a / |a|, so da = dy · (v - cos · u) / |a|. If `minimum`
        # replaces the length, the length is constant, and da = dy · v / minimum.
        length_a, length_b, along, dy = (
            jnp.expand_dims(x, axis) for x in (*lengths, cosine, dy)
        )
        u, v = a / length_a, b / length_b
        along_u = jnp.where(length_a > minimum, along, 0) * u
        along_v = jnp.where(length_b > minimum, along, 0) * v
        return dy * (v - along_u) / length_a, dy * (u - along_v) / length_b

    return cosine, backward
