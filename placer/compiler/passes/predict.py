"""predict: reduce the graph to what a prediction runs: the outputs.

Needs a sliced graph. Afterwards there are the `output` ops and the ops that they depend
on, as in an evaluation (`evaluate.py`): so inputs such as labels that no output depends
on are not read. The batch is that of an evaluation, if there is one.
"""

from __future__ import annotations

from placer.compiler.graph.graph import Graph
from placer.compiler.graph.if_training import is_output
from placer.compiler.passes.evaluate import forward_ops


def predict(graph: Graph) -> Graph:
    """Run the pass. The graph has `output` ops."""
    ops = forward_ops(graph, is_output)
    batch = graph.evaluation_batch or graph.batch
    header = f"{graph.name}.predict", graph.cluster, batch
    return Graph(*header, ops, first_edge=graph.first_edge)
