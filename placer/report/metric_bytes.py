"""Counts the bytes of metrics that nodes send to the control node."""

from __future__ import annotations

from typing import Final

from placer.compiler.graph.graph import Graph
from placer.plan.plan import Plan

LEAST: Final = 1000
"""Fewer bytes of metrics in a step are not shown: those of a loss and an accuracy."""
_WEIGHTED: Final = 8
"""The bytes of a number that is weighted by rows."""


def metric_bytes(plan: Plan, step: Graph) -> int:
    """Return the bytes of metrics that all nodes together send after each step.

    Each node that records metrics sends their statistics to the control node. No edge of
    the plan has them.

    Args:
        plan: the plan of a build.
        step: the graph of a training step after the last pass.
    """
    total = 0
    for op in step.of_kind("record"):
        is_weighted = op.attrs.get("final", "value") == "value"
        nbytes = _WEIGHTED if is_weighted else step.values[op.operands[0]].type.nbytes()
        total += nbytes * sum(node != plan.control for node in step.nodes(op))
    return total
