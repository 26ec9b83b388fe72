"""Losses with labels.

The forward of each loss computes its derivative, up to a factor, and saves it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import jax
import jax.numpy as jnp

from placer.ops.common.gradient_jax import differentiable
from placer.ops.common.precision_jax import widen
from placer.ops.elementwise.broadcasting_jax import divide
from placer.ops.losses.labels_jax import class_numbers

Count = int | jax.Array | None
Pair = tuple[jax.Array, jax.Array]
Loss = Callable[..., jax.Array]


def reduce_losses(losses: jax.Array, reduce: str, count: Count) -> jax.Array:
    """Reduce losses as the attribute `reduce` says.

    `none` returns them, `sum` their sum, `mean` their mean; with `count`, the mean is
    this place's part of the mean over that many rows of the global batch.
    """
    if reduce == "none":
        return losses
    if reduce == "sum":
        return jnp.sum(losses)
    # Half floats are divided before rounding: the sum may be outside of their range.
    total = jnp.sum(widen(losses))
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
    return reduce_losses(losses, reduce, count)


def _smooth(target: jax.Array, smoothing: float, classes: int) -> jax.Array:
    """Return (1 - smoothing) · target + smoothing / classes."""
    if not smoothing:
        return target
    return target * (1 - smoothing) + smoothing / classes


Weights = tuple[float, ...]


def _softmax_loss_forward(
    smoothing: float, weights: Weights, logits: jax.Array, label: jax.Array
) -> tuple[jax.Array, Pair]:
    # -log softmax(z)[label] = log Σ exp(z - max z) - (z - max z)[label]
    shifted = logits - jnp.max(logits, axis=-1, keepdims=True)
    powers = jnp.exp(shifted)
    total = jnp.sum(powers, axis=-1, keepdims=True)
    class_ = class_numbers(label)
    valid = (class_ >= 0) & (class_ < logits.shape[-1])
    index = jnp.where(valid, class_, 0)[..., None]
    label_logit = jnp.take_along_axis(shifted, index, axis=-1)
    losses = jnp.squeeze(jnp.log(total) - label_logit, axis=-1)
    if weights:
        losses = losses * jnp.asarray(weights, logits.dtype)[index[..., 0]]
    if smoothing:
        class_losses = jnp.log(total) - shifted
        if weights:
            class_losses = class_losses * jnp.asarray(weights, logits.dtype)
        mean = jnp.mean(class_losses, axis=-1)
        losses = (1 - smoothing) * losses + smoothing * mean
    return jnp.where(valid, losses, jnp.nan), (powers / total, label)


def _softmax_loss_backward(
    smoothing: float, weights: Weights, saved: Pair, dy: jax.Array
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


_softmax_loss = differentiable(_softmax_loss_forward, _softmax_loss_backward, static=2)


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
    return reduce_losses(losses, reduce, count)


def _sigmoid_loss(
    smoothing: float, weight: float, logits: jax.Array, label: jax.Array
) -> Pair:
    """Return the losses, and their derivatives by the logits.

    With exp(-|z|) no exponential overflows: sigmoid(z) is 1 / (1 + exp(-z)) for z ≥ 0,
    else exp(z) / (1 + exp(z)).
    """
    target = _smooth(label.astype(logits.dtype), smoothing, 2)
    power = jnp.exp(-jnp.abs(logits))
    sigmoid = jnp.where(logits >= 0, 1, power) / (1 + power)
    if weight == 1:
        losses = jnp.maximum(logits, 0) - logits * target + jnp.log1p(power)
        return losses, sigmoid - target
    complement = jnp.where(logits >= 0, power, 1) / (1 + power)  # sigmoid(-z)
    negative, positive = _label_losses(logits)
    losses = weight * target * positive + (1 - target) * negative
    return losses, (1 - target) * sigmoid - weight * target * complement


def _label_losses(logits: jax.Array) -> Pair:
    """Return log(1 + exp(z)) and log(1 + exp(-z)), the losses of labels 0 and 1."""
    tail = jnp.log1p(jnp.exp(-jnp.abs(logits)))
    return jnp.maximum(logits, 0) + tail, jnp.maximum(-logits, 0) + tail


_hard_sigmoid_loss = differentiable(
    _sigmoid_loss, lambda smoothing, weight, slope, dy: (slope * dy, None), static=2
)


def _soft_forward(
    smoothing: float, weight: float, logits: jax.Array, label: jax.Array
) -> tuple[jax.Array, Pair]:
    losses, slope = _sigmoid_loss(smoothing, weight, logits, label)
    return losses, (logits, slope)


def _soft_backward(smoothing: float, weight: float, saved: Pair, dy: jax.Array) -> Pair:
    # The loss is linear in the target: its derivative is weight · (loss of label 1) -
    # (loss of label 0), which is -z if the weight is 1.
    logits, slope = saved
    label_slope = -logits
    if weight != 1:
        negative, positive = _label_losses(logits)
        label_slope = weight * positive - negative
    if smoothing:
        label_slope = (1 - smoothing) * label_slope
    return slope * dy, label_slope * dy


_soft_sigmoid_loss = differentiable(_soft_forward, _soft_backward, static=2)


def _hinge_forward(prediction: jax.Array, label: jax.Array) -> Pair:
    # The derivative is -sign inside of the margin, else 0; it fits int8
    sign = jnp.where(label > 0, 1, -1).astype(jnp.int8)
    shortfall = 1 - sign.astype(prediction.dtype) * prediction
    return jnp.maximum(shortfall, 0), jnp.where(shortfall > 0, -sign, 0)


_hinge = differentiable(
    _hinge_forward, lambda slope, dy: (slope.astype(dy.dtype) * dy, None)
)


def make_loss(losses: Callable[[jax.Array, jax.Array], jax.Array]) -> Loss:
    """Return the function of an op that reduces the losses of two operands."""

    def loss(
        prediction: jax.Array,
        target: jax.Array,
        *,
        reduce: str = "mean",
        count: Count = None,
    ) -> jax.Array:
        return reduce_losses(losses(prediction, target), reduce, count)

    return loss


hinge = make_loss(_hinge)
