"""Losses: each keeps one array for backward, its derivative but for a factor."""

from __future__ import annotations

from math import prod

import jax
import jax.numpy as jnp

from placer.ops.functions.broadcast import divide

Count = int | jax.Array | None
Pair = tuple[jax.Array, jax.Array]


def _reduced(losses: jax.Array, reduce: str, count: Count) -> jax.Array:
    """The losses as they are, summed, or averaged over `count` global rows."""
    if reduce == "none":
        return losses
    total = jnp.sum(losses)
    if reduce == "sum":
        return total
    if count is None:
        return divide(total, losses.size)
    return divide(total, count * prod(losses.shape[1:]))


def softmax_cross_entropy(
    logits: jax.Array,
    label: jax.Array,
    *,
    reduce: str = "mean",
    count: Count = None,
) -> jax.Array:
    return _reduced(_softmax_loss(logits, label), reduce, count)


@jax.custom_vjp
def _softmax_loss(logits: jax.Array, label: jax.Array) -> jax.Array:
    return _softmax_loss_forward(logits, label)[0]


def _softmax_loss_forward(
    logits: jax.Array, label: jax.Array
) -> tuple[jax.Array, Pair]:
    shifted = logits - jnp.max(logits, axis=-1, keepdims=True)
    powers = jnp.exp(shifted)
    total = jnp.sum(powers, axis=-1, keepdims=True)
    there = (label >= 0) & (label < logits.shape[-1])
    at = jnp.where(there, label, 0)[..., None]
    own = jnp.take_along_axis(shifted, at, axis=-1)
    losses = jnp.squeeze(jnp.log(total) - own, axis=-1)
    return jnp.where(there, losses, jnp.nan), (powers / total, label)


def _softmax_loss_backward(kept: Pair, dy: jax.Array) -> tuple[jax.Array, None]:
    probabilities, label = kept
    classes = jnp.arange(probabilities.shape[-1], dtype=label.dtype)
    error = probabilities - (label[..., None] == classes).astype(probabilities.dtype)
    return error * dy[..., None], None


_softmax_loss.defvjp(_softmax_loss_forward, _softmax_loss_backward)


def sigmoid_cross_entropy(
    logits: jax.Array,
    label: jax.Array,
    *,
    reduce: str = "mean",
    count: Count = None,
) -> jax.Array:
    if jnp.issubdtype(label.dtype, jnp.floating):
        losses = _soft_sigmoid_loss(logits, label)
    else:
        losses = _hard_sigmoid_loss(logits, label)
    return _reduced(losses, reduce, count)


def _sigmoid_loss(logits: jax.Array, label: jax.Array) -> Pair:
    """The losses, and their derivative by the logits."""
    target = label.astype(logits.dtype)
    power = jnp.exp(-jnp.abs(logits))
    losses = jnp.maximum(logits, 0) - logits * target + jnp.log1p(power)
    sigmoid = jnp.where(logits >= 0, 1, power) / (1 + power)
    return losses, sigmoid - target


@jax.custom_vjp
def _hard_sigmoid_loss(logits: jax.Array, label: jax.Array) -> jax.Array:
    return _sigmoid_loss(logits, label)[0]


def _hard_backward(slope: jax.Array, dy: jax.Array) -> tuple[jax.Array, None]:
    return slope * dy, None


_hard_sigmoid_loss.defvjp(_sigmoid_loss, _hard_backward)


@jax.custom_vjp
def _soft_sigmoid_loss(logits: jax.Array, label: jax.Array) -> jax.Array:
    return _sigmoid_loss(logits, label)[0]


def _soft_forward(logits: jax.Array, label: jax.Array) -> tuple[jax.Array, Pair]:
    losses, slope = _sigmoid_loss(logits, label)
    return losses, (logits, slope)


def _soft_backward(kept: Pair, dy: jax.Array) -> Pair:
    logits, slope = kept
    return slope * dy, -logits * dy


_soft_sigmoid_loss.defvjp(_soft_forward, _soft_backward)


def mean_squared_error(
    prediction: jax.Array,
    target: jax.Array,
    *,
    reduce: str = "mean",
    count: Count = None,
) -> jax.Array:
    return _reduced(_squared_error(prediction, target), reduce, count)


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
