"""The finals of metrics, in float64: what they are stands in `placer.config.metrics`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from placer.config.metrics import Final

Array = npt.NDArray[Any]


def final(name: Final, statistic: Array) -> float:
    """The number that a statistic stands for; NaN where it is not defined.

    `ratio` and `root_ratio` take [2] or [3], `auc` [2, bins + 1], `value` a scalar.
    """
    sums = np.asarray(statistic, np.float64)
    match name:
        case "ratio":
            return _ratio(sums)
        case "root_ratio":
            return math.sqrt(_ratio(sums))
        case "auc":
            return _auc(sums)
    return float(sums)


def _ratio(sums: Array) -> float:
    part, whole, *meaningless = sums.tolist()
    return part / whole if whole and not any(meaningless) else math.nan


def _auc(sums: Array) -> float:
    """The share of pairs of a negative and a positive in the right order, those of one
    bin counted by half. Counts are exact below 2**53 pairs."""
    negatives, positives = sums[:, :-1]
    pairs = negatives.sum() * positives.sum()
    if not pairs or sums[:, -1].any():
        return math.nan
    below = np.cumsum(negatives) - negatives
    return float((positives * (below + negatives / 2)).sum() / pairs)
