"""train: reduce the graph to what a training step runs.

Needs a sliced graph. Afterwards each `if_training` is its first operand, and every op
is needed by a store or a record. Unused parameters stay, because they are saved.
"""

from __future__ import annotations

from placer.analysis.if_training import resolve_if_training
from placer.graph.graph import Graph


def train(graph: Graph) -> Graph:
    """Run the pass."""
    roots = ("store", "record", "parameter")
    return graph.with_ops(resolve_if_training(graph, 0, lambda op: op.kind in roots))
