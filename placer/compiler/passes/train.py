"""train: reduce the graph to a training step.

Needs a sliced graph. Afterwards each `if_training` is replaced by its first operand.
Only ops with an effect, such as a store or a record, and the ops they need remain;
prediction outputs are removed. Unused parameters stay, because checkpoints save them.
"""

from __future__ import annotations

from dataclasses import replace

from placer.compiler.graph.graph import Graph
from placer.compiler.graph.if_training import is_training_effect, resolve_if_training
from placer.compiler.graph.keyed import without_unused_tables


def train(graph: Graph) -> Graph:
    """Run the pass."""
    ops = resolve_if_training(graph, 0, is_training_effect)
    return without_unused_tables(replace(graph.with_ops(ops), evaluation_batch=None))
