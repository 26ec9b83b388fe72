"""Metrics: each gives a statistic, sums and counts over the rows that are here.

A statistic of counts is int32 and its last number counts what has no meaning, a NaN
for one: any makes the metric NaN, on whatever place it was.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from placer.ops.losses.labels_jax import class_numbers


def accuracy(logits: jax.Array, label: jax.Array) -> jax.Array:
    """int32[3]: right rows, rows, rows with a NaN."""
    right = jnp.argmax(logits, axis=-1) == class_numbers(label)
    return _counts(right, label.size, _lost(logits))


def top_k_accuracy(logits: jax.Array, label: jax.Array, *, k: int) -> jax.Array:
    """int32[3]: right rows, rows, rows with a NaN.

    Right are rows in which fewer than k logits stand before the label's: greater ones,
    and equal ones of lower classes, as with `jax.lax.top_k`.
    """
    own_class = class_numbers(label)
    there = (own_class >= 0) & (own_class < logits.shape[-1])
    at = jnp.where(there, own_class, 0)[..., None]
    own = jnp.take_along_axis(logits, at, axis=-1)
    classes = jnp.arange(logits.shape[-1])
    # The label's own is not compared: XLA may round it differently in each of the two.
    before = ((logits > own) & (classes != at)) | ((logits == own) & (classes < at))
    right = there & (jnp.sum(before, axis=-1, dtype=jnp.int32) < k)
    return _counts(right, label.size, _lost(logits))


def precision(
    prediction: jax.Array,
    label: jax.Array,
    *,
    threshold: float = 0.5,
    logits: bool = False,
    class_id: int | None = None,
) -> jax.Array:
    """int32[3]: true positives, predicted positives, rows with a NaN."""
    said, true, lost = _binary(prediction, label, threshold, logits, class_id)
    return _counts(said & true, said, lost)


def recall(
    prediction: jax.Array,
    label: jax.Array,
    *,
    threshold: float = 0.5,
    logits: bool = False,
    class_id: int | None = None,
) -> jax.Array:
    """int32[3]: true positives, positives, rows with a NaN."""
    said, true, lost = _binary(prediction, label, threshold, logits, class_id)
    return _counts(said & true, true, lost)


def f1(
    prediction: jax.Array,
    label: jax.Array,
    *,
    threshold: float = 0.5,
    logits: bool = False,
    class_id: int | None = None,
) -> jax.Array:
    """int32[3]: twice the true positives, predicted and true ones, rows with a NaN."""
    said, true, lost = _binary(prediction, label, threshold, logits, class_id)
    return _counts(2 * _count(said & true), _count(said) + _count(true), lost)


def auc(
    prediction: jax.Array, label: jax.Array, *, bins: int = 4096, logits: bool = False
) -> jax.Array:
    """int32[2, bins + 1]: negatives and positives by the nearest of `bins` predictions
    evenly on [0, 1]; the last bin counts predictions that are NaN or outside."""
    chance = jax.nn.sigmoid(prediction) if logits else prediction
    chance = chance.astype(_wide(chance)).reshape(-1)
    there = (chance >= 0) & (chance <= 1) & ~jnp.isnan(label).reshape(-1)
    nearest = jnp.round(jnp.where(there, chance, 0) * (bins - 1)).astype(jnp.int32)
    row = (label > 0.5).reshape(-1).astype(jnp.int32)
    empty = jnp.zeros((2, bins + 1), jnp.int32)
    return empty.at[row, jnp.where(there, nearest, bins)].add(1)


def mean_absolute_error(prediction: jax.Array, target: jax.Array) -> jax.Array:
    """[2]: the sum of |prediction - target|, and how many there are."""
    return _sum(jnp.abs(_difference(prediction, target)))


def root_mean_squared_error(prediction: jax.Array, target: jax.Array) -> jax.Array:
    """[2]: the sum of (prediction - target)², and how many there are."""
    return _sum(jnp.square(_difference(prediction, target)))


def mean(x: jax.Array) -> jax.Array:
    """[2]: the sum of the elements, and how many there are."""
    return _sum(x)


def _binary(
    prediction: jax.Array,
    label: jax.Array,
    threshold: float,
    logits: bool,
    class_id: int | None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What is predicted as positive, what is positive, and rows with a NaN."""
    if class_id is not None:
        said = jnp.argmax(prediction, axis=-1) == class_id
        return said, class_numbers(label) == class_id, _lost(prediction)
    least = math.log(threshold / (1 - threshold)) if logits else threshold
    lost = jnp.isnan(prediction) | jnp.isnan(label)
    return prediction > least, label > 0.5, lost


def _lost(logits: jax.Array) -> jax.Array:
    return jnp.any(jnp.isnan(logits), axis=-1)


def _difference(prediction: jax.Array, target: jax.Array) -> jax.Array:
    wide = _wide(prediction)
    return prediction.astype(wide) - target.astype(wide)


def _counts(*counted: jax.Array | int) -> jax.Array:
    """Counts, or how many are true, side by side."""
    return jnp.stack([_count(each) for each in counted])


def _count(counted: jax.Array | int) -> jax.Array:
    return jnp.sum(jnp.asarray(counted), dtype=jnp.int32)


def _sum(x: jax.Array) -> jax.Array:
    wide = _wide(x)
    return jnp.stack([jnp.sum(x, dtype=wide), jnp.asarray(x.size, wide)])


def _wide(x: jax.Array) -> jnp.dtype:
    """The dtype that floats are summed in: float64 stays, others are float32."""
    return jnp.promote_types(x.dtype, jnp.float32)
