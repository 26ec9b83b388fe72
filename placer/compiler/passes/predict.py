"""predict: reduce the graph to a prediction, which computes only the outputs.

Needs a sliced graph. Afterwards the graph contains the `output` ops and the ops they
depend on, as in an evaluation (`evaluate.py`). Inputs without influence on an output,
such as labels, are not read. The batch is the evaluation batch, if any.
"""

from __future__ import annotations

from placer.compiler.graph.graph import Graph
from placer.compiler.graph.if_training import is_output
from placer.compiler.graph.keyed import without_unused_tables
from placer.compiler.passes.evaluate import forward_ops


def predict(graph: Graph) -> Graph:
    """Run the pass on a graph with `output` ops."""
    ops = forward_ops(graph, is_output)
    batch = graph.evaluation_batch or graph.batch
    header = f"{graph.name}.predict", graph.cluster, batch
    return without_unused_tables(Graph(*header, ops, first_edge=graph.first_edge))
