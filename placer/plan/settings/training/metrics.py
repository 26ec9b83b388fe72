"""Finalizers: how the reported number of a metric is computed from its statistic.

The value of a metric is a *statistic*: a tensor of sums and counts, which is summed
exactly over places, batches and steps. The finalizer is applied once, after the
statistic of a step, an epoch or an evaluation has been summed. So the reported number
does not depend on how rows are distributed. `placer.runtime.metrics` has the functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Finalizer = Literal["value", "ratio", "root_ratio", "auc"]

FINALIZERS: Mapping[Finalizer, str] = {
    "value": "the number itself; over several batches, their mean weighted by rows",
    "ratio": "the first number divided by the second; NaN if the second is 0, or if the"
    " third, a count of invalid values, is not 0",
    "root_ratio": "the square root of the first number divided by the second",
    "auc": "the area under the ROC curve of a histogram of negatives and one of"
    " positives, by the trapezoidal rule; NaN if either is empty, or if their last bin,"
    " a count of invalid values, is not empty",
}
"""The finalizers: name and description."""
