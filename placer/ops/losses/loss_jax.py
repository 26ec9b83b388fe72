"""Losses against labels: each keeps its derivative but for a factor for backward."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

import jax
import jax.numpy as jnp

from placer.ops.common.precision_jax import wide
from placer.ops.elementwise.broadcasting_jax import divide
from placer.ops.losses.labels_jax import class_numbers

Count = int | jax.Array | None
Pair = tuple[jax.Array, jax.Array]


def reduced(losses: jax.Array, reduce: str, count: Count) -> jax.Array:
    """The losses as they are, summed, or averaged over `count` global rows."""
    if reduce == "none":
        return losses
    if reduce == "sum":
        return jnp.sum(losses)
    # Halves are divided before they are rounded: the sum may be beyond their range.
    total = jnp.sum(wide(losses))
    if count is None:
        return divide(total, losses.size).astype(losses.dtype)
    return divide(total, count * prod(losses.shape[1:])).astype(losses.dtype)


def softmax_cross_entropy(
    logits: jax.Array,
    label: jax.Array,
    *,
    reduce: str = "mean",
    label_smoothing: float = 0.0,
    class_weights: Sequence[float] = (),
    count: Count = None,
) -> jax.Array:
    weights = tuple(class_weights)
    losses = _softmax_loss(label_smoothing, weights, logits, label)
    return reduced(losses, reduce, count)


def _smooth(target: jax.Array, smoothing: float, classes: int) -> jax.Array:
    """The target, a share of it given to all classes alike."""
    if not smoothing:
        return target
    return target * (1 - smoothing) + smoothing / classes


Weights = tuple[float, ...]


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _softmax_loss(
    smoothing: float, weights: Weights, logits: jax.Array, label: jax.Array
) -> jax.Array:
    return _softmax_loss_forward(smoothing, weights, logits, label)[0]


def _softmax_loss_forward(
    smoothing: float, weights: Weights, logits: jax.Array, label: jax.Array
) -> tuple[jax.Array, Pair]:
    shifted = logits - jnp.max(logits, axis=-1, keepdims=True)
    powers = jnp.exp(shifted)
    total = jnp.sum(powers, axis=-1, keepdims=True)
    number = class_numbers(label)
    there = (number >= 0) & (number < logits.shape[-1])
    at = jnp.where(there, number, 0)[..., None]
    own = jnp.take_along_axis(shifted, at, axis=-1)
    losses = jnp.squeeze(jnp.log(total) - own, axis=-1)
    if weights:
        losses = losses * jnp.asarray(weights, logits.dtype)[at[..., 0]]
    if smoothing:
        each = jnp.log(total) - shifted
        if weights:
            each = each * jnp.asarray(weights, logits.dtype)
        losses = (1 - smoothing) * losses + smoothing * jnp.mean(each, axis=-1)
    return jnp.where(there, losses, jnp.nan), (powers / total, label)


def _softmax_loss_backward(
    smoothing: float, weights: Weights, kept: Pair, dy: jax.Array
) -> tuple[jax.Array, None]:
    probabilities, label = kept
    number = class_numbers(label)
    classes = jnp.arange(probabilities.shape[-1], dtype=number.dtype)
    onehot = (number[..., None] == classes).astype(probabilities.dtype)
    target = _smooth(onehot, smoothing, len(classes))
    if weights:
        target = target * jnp.asarray(weights, target.dtype)
        probabilities = probabilities * jnp.sum(target, axis=-1, keepdims=True)
    return (probabilities - target) * dy[..., None], None


_softmax_loss.defvjp(_softmax_loss_forward, _softmax_loss_backward)


def sigmoid_cross_entropy(
    logits: jax.Array,
    label: jax.Array,
    *,
    reduce: str = "mean",
    label_smoothing: float = 0.0,
    positive_weight: float = 1.0,
    count: Count = None,
) -> jax.Array:
    soft = jnp.issubdtype(label.dtype, jnp.floating)
    loss = _soft_sigmoid_loss if soft else _hard_sigmoid_loss
    losses = loss(label_smoothing, positive_weight, logits, label)
    return reduced(losses, reduce, count)


def _sigmoid_loss(
    smoothing: float, weight: float, logits: jax.Array, label: jax.Array
) -> Pair:
    """The losses, and their derivative by the logits."""
    target = _smooth(label.astype(logits.dtype), smoothing, 2)
    power = jnp.exp(-jnp.abs(logits))
    sigmoid = jnp.where(logits >= 0, 1, power) / (1 + power)
    if weight == 1:
        losses = jnp.maximum(logits, 0) - logits * target + jnp.log1p(power)
        return losses, sigmoid - target
    other = jnp.where(logits >= 0, power, 1) / (1 + power)
    negative, positive = _log_losses(logits)
    losses = weight * target * positive + (1 - target) * negative
    return losses, (1 - target) * sigmoid - weight * target * other


def _log_losses(logits: jax.Array) -> Pair:
    """The losses of a negative and of a positive label."""
    tail = jnp.log1p(jnp.exp(-jnp.abs(logits)))
    return jnp.maximum(logits, 0) + tail, jnp.maximum(-logits, 0) + tail


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _hard_sigmoid_loss(
    smoothing: float, weight: float, logits: jax.Array, label: jax.Array
) -> jax.Array:
    return _sigmoid_loss(smoothing, weight, logits, label)[0]


def _hard_backward(
    smoothing: float, weight: float, slope: jax.Array, dy: jax.Array
) -> tuple[jax.Array, None]:
    return slope * dy, None


_hard_sigmoid_loss.defvjp(_sigmoid_loss, _hard_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _soft_sigmoid_loss(
    smoothing: float, weight: float, logits: jax.Array, label: jax.Array
) -> jax.Array:
    return _sigmoid_loss(smoothing, weight, logits, label)[0]


def _soft_forward(
    smoothing: float, weight: float, logits: jax.Array, label: jax.Array
) -> tuple[jax.Array, Pair]:
    losses, slope = _sigmoid_loss(smoothing, weight, logits, label)
    return losses, (logits, slope)


def _soft_backward(smoothing: float, weight: float, kept: Pair, dy: jax.Array) -> Pair:
    logits, slope = kept
    of_label = -logits
    if weight != 1:
        negative, positive = _log_losses(logits)
        of_label = weight * positive - negative
    if smoothing:
        of_label = (1 - smoothing) * of_label
    return slope * dy, of_label * dy


_soft_sigmoid_loss.defvjp(_soft_forward, _soft_backward)


def hinge(
    prediction: jax.Array,
    label: jax.Array,
    *,
    reduce: str = "mean",
    count: Count = None,
) -> jax.Array:
    return reduced(_hinge(prediction, label), reduce, count)


@jax.custom_vjp
def _hinge(prediction: jax.Array, label: jax.Array) -> jax.Array:
    return _hinge_forward(prediction, label)[0]


def _hinge_forward(prediction: jax.Array, label: jax.Array) -> Pair:
    side = jnp.where(label > 0, 1, -1).astype(jnp.int8)
    short = 1 - side.astype(prediction.dtype) * prediction
    return jnp.maximum(short, 0), jnp.where(short > 0, -side, 0)


def _hinge_backward(slope: jax.Array, dy: jax.Array) -> tuple[jax.Array, None]:
    return slope.astype(dy.dtype) * dy, None


_hinge.defvjp(_hinge_forward, _hinge_backward)
