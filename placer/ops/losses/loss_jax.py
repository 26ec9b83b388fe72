"""Losses with labels.

The forward of each loss saves its derivative, up to a factor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from ..common.gradient_jax import (
    WithBackward,
    differentiable,
    with_gradient,
)
from ..common.precision_jax import widen
from ..elementwise.broadcasting_jax import divide
from .labels_jax import class_numbers, valid_classes

Count = int | jax.Array | None


def make_loss(losses: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Return the function of an op that reduces `losses(*operands, **attributes)`.

    `reduce` is `none`, `sum` or `mean`. With `count`, `mean` divides the sum by this
    number of rows of the global batch, so the results of all nodes add up to the mean.
    """

    @wraps(losses)
    def loss(
        *operands: jax.Array,
        reduce: str = "mean",
        count: Count = None,
        **attributes: Any,
    ) -> jax.Array:
        each = losses(*operands, **attributes)
        if reduce == "none":
            return each
        if reduce == "sum":
            return jnp.sum(each)
        # Half floats are divided before rounding, because the sum may overflow
        total = jnp.sum(widen(each))
        n = each.size if count is None else count * prod(each.shape[1:])
        return divide(total, n).astype(each.dtype)

    return loss


def _smooth(target: jax.Array, smoothing: float, classes: int) -> jax.Array:
    if not smoothing:
        return target
    return target * (1 - smoothing) + smoothing / classes


@make_loss
def softmax_cross_entropy(
    logits: jax.Array,
    label: jax.Array,
    *,
    label_smoothing: float = 0.0,
    class_weights: Sequence[float] = (),
) -> jax.Array:
    return _softmax_losses(label_smoothing, tuple(class_weights), logits, label)


Saved = tuple[jax.Array, jax.Array]
Weights = tuple[float, ...]


def _softmax_forward(
    smoothing: float, weights: Weights, logits: jax.Array, label: jax.Array
) -> tuple[jax.Array, Saved]:
    # -log softmax(z)[label] = log Σ exp(z - max z) - (z - max z)[label]
    shifted = logits - jnp.max(logits, axis=-1, keepdims=True)
    powers = jnp.exp(shifted)
    total = jnp.sum(powers, axis=-1, keepdims=True)
    class_, valid = valid_classes(label, logits.shape[-1])
    label_logit = jnp.take_along_axis(shifted, class_[..., None], axis=-1)
    losses = jnp.squeeze(jnp.log(total) - label_logit, axis=-1)
    if weights:
        losses = losses * jnp.asarray(weights, logits.dtype)[class_]
    if smoothing:
        class_losses = jnp.log(total) - shifted
        if weights:
            class_losses = class_losses * jnp.asarray(weights, logits.dtype)
        mean = jnp.mean(class_losses, axis=-1)
        losses = (1 - smoothing) * losses + smoothing * mean
    return jnp.where(valid, losses, jnp.nan), (powers / total, label)


def _softmax_backward(
    smoothing: float, weights: Weights, saved: Saved, dy: jax.Array
) -> tuple[jax.Array, None]:
    # loss = Σ q · (log Σ exp(z) - z), so dz = (softmax(z) · Σ q - q) · dy, where q is
    # the smoothed target times the weights; without weights Σ q = 1.
    probabilities, label = saved
    class_ = class_numbers(label)
    classes = jnp.arange(probabilities.shape[-1], dtype=class_.dtype)
    onehot = (class_[..., None] == classes).astype(probabilities.dtype)
    target = _smooth(onehot, smoothing, len(classes))
    if weights:
        target = target * jnp.asarray(weights, target.dtype)
        probabilities = probabilities * jnp.sum(target, axis=-1, keepdims=True)
    return (probabilities - target) * dy[..., None], None


# not with_gradient: it would save the weights as an array
_softmax_losses = differentiable(_softmax_forward, _softmax_backward, static=2)


@make_loss
@with_gradient
def sigmoid_cross_entropy(
    logits: jax.Array,
    label: jax.Array,
    *,
    label_smoothing: float = 0.0,
    positive_weight: float = 1.0,
) -> WithBackward:
    # With exp(-|z|) no exponential overflows: sigmoid(z) is 1 / (1 + exp(-z)) for
    # z ≥ 0, else exp(z) / (1 + exp(z))
    target = _smooth(label.astype(logits.dtype), label_smoothing, 2)
    power = jnp.exp(-jnp.abs(logits))
    sigmoid = jnp.where(logits >= 0, 1, power) / (1 + power)
    if positive_weight == 1:
        losses = jnp.maximum(logits, 0) - logits * target + jnp.log1p(power)
        slope = sigmoid - target
    else:
        complement = jnp.where(logits >= 0, power, 1) / (1 + power)  # sigmoid(-z)
        negative, positive = _label_losses(logits)
        losses = positive_weight * target * positive + (1 - target) * negative
        slope = (1 - target) * sigmoid - positive_weight * target * complement

    def backward(dy: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        if not jnp.issubdtype(label.dtype, jnp.floating):
            return slope * dy, None
        # The loss is linear in the target: its derivative is weight · (loss of label 1)
        # - (loss of label 0), which is -z if the weight is 1.
        label_slope = -logits
        if positive_weight != 1:
            negative, positive = _label_losses(logits)
            label_slope = positive_weight * positive - negative
        if label_smoothing:
            label_slope = (1 - label_smoothing) * label_slope
        return slope * dy, label_slope * dy

    return losses, backward


def _label_losses(logits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return log(1 + exp(z)) and log(1 + exp(-z)), the losses of labels 0 and 1."""
    tail = jnp.log1p(jnp.exp(-jnp.abs(logits)))
    return jnp.maximum(logits, 0) + tail, jnp.maximum(-logits, 0) + tail


@make_loss
@with_gradient
def hinge(prediction: jax.Array, label: jax.Array) -> WithBackward:
    # The derivative is -sign inside the margin, else 0; it fits int8
    sign = jnp.where(label > 0, 1, -1).astype(jnp.int8)
    shortfall = 1 - sign.astype(prediction.dtype) * prediction
    slope = jnp.where(shortfall > 0, -sign, 0)
    return jnp.maximum(shortfall, 0), lambda dy: (slope.astype(dy.dtype) * dy, None)
