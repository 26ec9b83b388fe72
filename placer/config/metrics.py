"""Finals: how the number that a person reads is made of a metric's statistic.

A metric's value is a *statistic*: a tensor of sums and counts, exact when it is added
up over places, batches and steps. What is told of a step, an epoch or an evaluation is
its `final`, taken after all that belongs to it has been added up: so it does not depend
on how rows were dealt out. `placer.runtime.metrics.finals` computes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Final = Literal["value", "ratio", "root_ratio", "auc"]

FINALS: Mapping[Final, str] = {
    "value": "the number itself; over several batches their mean by rows",
    "ratio": "the first number over the second; NaN where the second is 0, or where a"
    " third, the count of what has no meaning, is not",
    "root_ratio": "the square root of the first number over the second",
    "auc": "the area under the curve of a histogram of negatives and one of positives"
    " by the trapezoid rule; NaN where one of them is empty, or where their last bin,"
    " the count of what has no meaning, is not",
}
"""Every final by its name, and what it is."""
