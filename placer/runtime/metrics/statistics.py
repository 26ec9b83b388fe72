"""Adding up what is recorded: over batches, nodes and steps, then the numbers of it.

Counts are added as int64, all else as float64, in the order in which they come.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from placer.build.plan import Plan
from placer.config.metrics import Final
from placer.runtime.metrics.finals import final

Array = npt.NDArray[Any]
Statistics = dict[str, Array]
"""What has been recorded, by the names of the metrics."""


def finals(plan: Plan) -> dict[str, Final]:
    """The final of every metric in the spec's order, then that of the minimized loss."""
    found = {
        name: metric.final
        for node in plan.nodes
        for name, metric in node.step.metrics.items()
    }
    names = dict.fromkeys((*plan.metrics, plan.minimize))
    return {name: found[name] for name in names}


def weighted(
    values: Mapping[str, Any], of: Mapping[str, Final], rows: int
) -> Statistics:
    """Values of a batch as what may be added up: a plain number counts by its rows.

    Waits for arrays that are still being computed.
    """
    return {
        name: np.asarray(float(value) * rows if of[name] == "value" else value)
        for name, value in values.items()
    }


def add(to: Statistics, statistics: Mapping[str, Array]) -> None:
    """Add statistics up in place; what was taken first is not changed."""
    for name, value in statistics.items():
        held = to.get(name)
        to[name] = value if held is None else np.add(held, value, dtype=_wide(value))


def numbers(
    statistics: Mapping[str, Array], of: Mapping[str, Final], rows: int
) -> dict[str, float]:
    """What is told of statistics that `rows` rows went into."""
    return {
        name: float(statistics[name]) / rows
        if how == "value"
        else final(how, statistics[name])
        for name, how in of.items()
    }


def _wide(value: Array) -> type[np.number[Any]]:
    return np.int64 if value.dtype.kind in "iu" else np.float64
