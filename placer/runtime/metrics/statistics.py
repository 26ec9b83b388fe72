"""Adds statistics over batches, nodes and steps, and finalizes them.

Counts are added as int64, everything else as float64, in the order of arrival.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from placer.channel.types import Array
from placer.checkpoint.manifest import Statistic
from placer.plan.plan import Plan
from placer.plan.settings.training.metrics import Finalizer
from placer.runtime.metrics.finalizers import finalize

Statistics = dict[str, Array]
"""Statistics by the name of the metric."""


def finalizers_of(plan: Plan) -> dict[str, Finalizer]:
    """Return the finalizer of every metric by name, in the spec's order, then the loss."""
    recorded = {
        name: metric.final
        for node in plan.nodes
        for name, metric in node.step.metrics.items()
    }
    names = dict.fromkeys((*plan.settings.train.metrics, plan.settings.train.minimize))
    return {name: recorded[name] for name in names}


def weight_by_rows(
    values: Mapping[str, Any], finalizers: Mapping[str, Finalizer], rows: int
) -> Statistics:
    """Convert the values of a batch to statistics that can be added. A plain number is
    multiplied by the batch's number of rows. Waits for arrays that are still being
    computed."""
    return {
        name: np.asarray(float(value) * rows if finalizers[name] == "value" else value)
        for name, value in values.items()
    }


def add_statistics(to: Statistics, statistics: Mapping[str, Array]) -> None:
    """Add `statistics` to `to`. Arrays in `to` are replaced, not modified."""
    for name, value in statistics.items():
        total = to.get(name)
        dtype = np.int64 if value.dtype.kind in "iu" else np.float64
        to[name] = value if total is None else np.add(total, value, dtype=dtype)


def encode_statistics(
    statistics: Mapping[str, Array], finalizers: Mapping[str, Finalizer]
) -> dict[str, Statistic]:
    """Return statistics in the format of a checkpoint."""
    return {
        name: Statistic(finalizers[name], str(sums.dtype), sums.shape, sums.tobytes())
        for name, sums in statistics.items()
    }


def decode_statistics(stored: Mapping[str, Statistic]) -> Statistics:
    """Return the statistics of a checkpoint."""
    return {
        name: np.frombuffer(each.data, each.dtype).reshape(each.shape)
        for name, each in stored.items()
    }


def finalize_all(
    statistics: Mapping[str, Array], finalizers: Mapping[str, Finalizer], rows: int
) -> dict[str, float]:
    """Return the reported number of each metric, from statistics over `rows` rows."""
    return {
        name: finalize(finalizer, statistics[name], rows)
        for name, finalizer in finalizers.items()
    }
