"""Metrics in plain numpy, over all rows of a reported number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from support import called

Array = np.ndarray


def metric_value(entry: Mapping[str, Any], batches: Sequence[tuple[Any, ...]]) -> float:
    """Return the value of a metric over one or several batches of its operands."""
    attrs = {k: v for k, v in entry.items() if k not in ("name", "op", "in", "place")}
    operands = [
        np.concatenate([np.atleast_1d(np.asarray(part)) for part in parts])
        for parts in zip(*batches, strict=True)
    ]
    return float(METRICS[entry["op"]](*operands, **attrs))


def _flatten_rows(logits: Array, label: Array) -> tuple[Array, Array]:
    return logits.reshape(-1, logits.shape[-1]), label.reshape(-1)


def _accuracy(logits: Array, label: Array) -> float:
    logits, label = _flatten_rows(logits, label)
    return np.mean(np.argmax(logits, -1) == label)


def _top_k_accuracy(logits: Array, label: Array, k: int) -> float:
    logits, label = _flatten_rows(logits, label)
    best = np.argsort(-logits, axis=-1, kind="stable")[:, :k]
    return np.mean(np.any(best == label[:, None], axis=-1))


def _positive_counts(
    prediction: Array,
    label: Array,
    threshold: float = 0.5,
    logits: bool = False,
    class_id: int | None = None,
) -> tuple[int, int, int]:
    """Return the numbers of true positives, predicted positives and positives."""
    if class_id is not None:
        prediction, label = _flatten_rows(prediction, label)
        predicted, positive = np.argmax(prediction, -1) == class_id, label == class_id
    else:
        chance = 1 / (1 + np.exp(-prediction)) if logits else prediction
        predicted, positive = chance > threshold, label > 0.5
    return np.sum(predicted & positive), np.sum(predicted), np.sum(positive)


def _ratio(part: Any, whole: Any) -> float:
    return part / whole if whole else np.nan


def _precision(*operands: Array, **how: Any) -> float:
    both, predicted, _ = _positive_counts(*operands, **how)
    return _ratio(both, predicted)


def _recall(*operands: Array, **how: Any) -> float:
    both, _, positive = _positive_counts(*operands, **how)
    return _ratio(both, positive)


def _f1(*operands: Array, **how: Any) -> float:
    both, predicted, positive = _positive_counts(*operands, **how)
    return _ratio(2 * both, predicted + positive)


def _auc(
    prediction: Array, label: Array, bins: int = 4096, logits: bool = False
) -> float:
    """Return the area under the curve, from all pairs of a positive and a negative."""
    chance = 1 / (1 + np.exp(-prediction)) if logits else prediction
    at = np.round(chance.reshape(-1) * (bins - 1))
    true = label.reshape(-1) > 0.5
    pairs = at[true][:, None] - at[~true]
    return _ratio(np.sum(pairs > 0) + np.sum(pairs == 0) / 2, pairs.size)


def _metric(*operands: Array, fn: str) -> float:
    """Return a metric by a function of `support.called`."""
    returned = getattr(called, fn.partition(":")[2])(*operands)
    if isinstance(returned, tuple):
        return _ratio(*(float(np.sum(np.asarray(each))) for each in returned))
    return float(np.mean(np.asarray(returned)))


METRICS: dict[str, Callable[..., float]] = {
    "accuracy": _accuracy,
    "top_k_accuracy": _top_k_accuracy,
    "precision": _precision,
    "recall": _recall,
    "f1": _f1,
    "auc": _auc,
    "mean_absolute_error": lambda p, t: np.mean(np.abs(p - t)),
    "root_mean_squared_error": lambda p, t: np.sqrt(np.mean((p - t) ** 2)),
    "mean": np.mean,
    "metric": _metric,
}
