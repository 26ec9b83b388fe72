"""Metrics: each returns a statistic, made of sums and counts over the local rows.

A statistic of counts is int32. Its last number counts invalid rows, such as rows with a
NaN. If any node has an invalid row, the metric is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from .labels_jax import class_numbers, valid_classes


def accuracy(logits: jax.Array, label: jax.Array) -> jax.Array:
    """Return int32[3]: right rows, rows, rows with a NaN."""
    right = jnp.argmax(logits, axis=-1) == class_numbers(label)
    return _counts(right, label.size, _has_nan(logits))


def top_k_accuracy(logits: jax.Array, label: jax.Array, *, k: int) -> jax.Array:
    """Return int32[3]: right rows, rows, rows with a NaN.

    A row is right if fewer than k logits come before the label's logit, as in
    `jax.lax.top_k`: larger logits, and equal logits of lower classes.
    """
    class_, valid = valid_classes(label, logits.shape[-1])
    index = class_[..., None]
    label_logit = jnp.take_along_axis(logits, index, axis=-1)
    classes = jnp.arange(logits.shape[-1])
    # Exclude the label's own logit: XLA may compute it twice and round it differently.
    larger = (logits > label_logit) & (classes != index)
    precedes = larger | ((logits == label_logit) & (classes < index))
    right = valid & (jnp.sum(precedes, axis=-1, dtype=jnp.int32) < k)
    return _counts(right, label.size, _has_nan(logits))


def auc(
    prediction: jax.Array, label: jax.Array, *, bins: int = 4096, logits: bool = False
) -> jax.Array:
    """Return int32[2, bins + 1]: histograms of predictions for negatives and positives.

    Bin k is centred on k / (bins - 1). The last bin counts predictions that are NaN or
    outside [0, 1].
    """
    probability = jax.nn.sigmoid(prediction) if logits else prediction
    probability = probability.astype(_sum_dtype(probability)).reshape(-1)
    valid = (probability >= 0) & (probability <= 1) & ~jnp.isnan(label).reshape(-1)
    scaled = jnp.where(valid, probability, 0) * (bins - 1)
    nearest = jnp.round(scaled).astype(jnp.int32)
    row = (label > 0.5).reshape(-1).astype(jnp.int32)
    empty = jnp.zeros((2, bins + 1), jnp.int32)
    return empty.at[row, jnp.where(valid, nearest, bins)].add(1)


def mean_absolute_error(prediction: jax.Array, target: jax.Array) -> jax.Array:
    """Return [2]: the sum of |prediction - target|, and the number of elements."""
    return mean(jnp.abs(_difference(prediction, target)))


def root_mean_squared_error(prediction: jax.Array, target: jax.Array) -> jax.Array:
    """Return [2]: the sum of (prediction - target)², and the number of elements."""
    return mean(jnp.square(_difference(prediction, target)))


def mean(x: jax.Array) -> jax.Array:
    """Return [2]: the sum of the elements, and their number."""
    dtype = _sum_dtype(x)
    return jnp.stack([jnp.sum(x, dtype=dtype), jnp.asarray(x.size, dtype)])


def _binary(
    count: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]],
) -> Callable[..., jax.Array]:
    """Return the function of a metric that counts predicted positives and positives."""

    def function(
        prediction: jax.Array,
        label: jax.Array,
        *,
        threshold: float = 0.5,
        logits: bool = False,
        class_id: int | None = None,
    ) -> jax.Array:
        if class_id is None:
            bound = math.log(threshold / (1 - threshold)) if logits else threshold
            predicted, positive = prediction > bound, label > 0.5
            invalid = jnp.isnan(prediction) | jnp.isnan(label)
        else:
            predicted = jnp.argmax(prediction, axis=-1) == class_id
            positive = class_numbers(label) == class_id
            invalid = _has_nan(prediction)
        return _counts(*count(predicted, positive), invalid)

    return function


precision = _binary(lambda predicted, positive: (predicted & positive, predicted))
"""Return int32[3]: true positives, predicted positives, rows with a NaN."""

recall = _binary(lambda predicted, positive: (predicted & positive, positive))
"""Return int32[3]: true positives, positives, rows with a NaN."""

f1 = _binary(
    lambda predicted, positive: (
        2 * _count(predicted & positive),
        _count(predicted) + _count(positive),
    )
)
"""Return int32[3]: 2 · true positives, predicted positives + positives, NaN rows."""


def _has_nan(logits: jax.Array) -> jax.Array:
    return jnp.any(jnp.isnan(logits), axis=-1)


def _difference(prediction: jax.Array, target: jax.Array) -> jax.Array:
    dtype = _sum_dtype(prediction)
    return prediction.astype(dtype) - target.astype(dtype)


def _counts(*counted: jax.Array | int) -> jax.Array:
    """Stack counts; a mask is counted first."""
    return jnp.stack([_count(each) for each in counted])


def _count(counted: jax.Array | int) -> jax.Array:
    return jnp.sum(jnp.asarray(counted), dtype=jnp.int32)


def _sum_dtype(x: jax.Array) -> jnp.dtype:
    """Return the dtype for sums of floats: float64 for float64, else float32."""
    return jnp.promote_types(x.dtype, jnp.float32)
