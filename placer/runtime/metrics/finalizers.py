"""The finalizers of metrics in float64; `placer.plan.settings.training.metrics` defines them."""

from __future__ import annotations

import math

import numpy as np

from placer.channel.types import Array
from placer.plan.settings.training.metrics import Finalizer


def finalize(name: Finalizer, statistic: Array, rows: int = 1) -> float:
    """Return the reported number of a statistic; NaN if it is undefined.

    Args:
        name: the finalizer, one of `placer.plan.settings.training.metrics`.
        statistic: sums and counts: [2] or [3] for `ratio` and `root_ratio`,
            [2, bins + 1] for `auc`; for `value` a scalar, weighted by rows.
        rows: the number of rows that a `value` was summed over.
    """
    sums = np.asarray(statistic, np.float64)
    match name:
        case "ratio":
            return _ratio(sums)
        case "root_ratio":
            return math.sqrt(_ratio(sums))
        case "auc":
            return _auc(sums)
    return float(sums) / rows


def _ratio(sums: Array) -> float:
    part, whole, *invalid = sums.tolist()
    return part / whole if whole and not any(invalid) else math.nan


def _auc(sums: Array) -> float:
    """Return the fraction of negative-positive pairs in the right order; ties count
    half. Exact below 2**53 pairs. Source: Mann and Whitney 1947."""
    negatives, positives = sums[:, :-1]
    pairs = negatives.sum() * positives.sum()
    if not pairs or sums[:, -1].any():
        return math.nan
    below = np.cumsum(negatives) - negatives
    return float((positives * (below + negatives / 2)).sum() / pairs)
