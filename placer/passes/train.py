"""train: what a training step runs.

Needs a sliced graph. Afterwards no `if_training` is left, each being its first operand,
nor anything that no store and no record needs; parameters stay, used or not, for they
are saved.
"""

from __future__ import annotations

from placer.analysis.if_training import resolved
from placer.graph.graph import Graph


def train(graph: Graph) -> Graph:
    kept = ("store", "record", "parameter")
    return graph.with_ops(resolved(graph, 0, lambda op: op.kind in kept))
