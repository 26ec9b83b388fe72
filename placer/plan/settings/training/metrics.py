"""Finalizers: how a metric's reported number follows from its statistic.

A *statistic* is a tensor of sums and counts, added up exactly over nodes, batches and
steps. The finalizer runs once, on the total of a step, an epoch or an evaluation. The
reported number is therefore independent of how rows are distributed.
`placer.runtime.metrics` implements the finalizers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Finalizer = Literal["value", "ratio", "root_ratio", "auc"]

FINALIZERS: Mapping[Finalizer, str] = {
    "value": "the number itself; over several batches, the mean weighted by rows",
    "ratio": "the first number divided by the second; NaN if the second is 0 or the third,"
    " a count of invalid values, is not 0",
    "root_ratio": "the square root of the first number divided by the second",
    "auc": "the area under the ROC curve, by the trapezoidal rule, from histograms of"
    " negatives and positives; NaN if either is empty, or if either last bin, a count of"
    " invalid values, is not 0",
}
"""The finalizers by name, with descriptions."""
