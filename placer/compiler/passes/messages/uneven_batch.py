"""Describes a batch that cannot be cut evenly, and the sizes that can."""

from __future__ import annotations

from placer.compiler.graph.graph import Graph
from placer.compiler.passes.evaluate import SUFFIX as EVALUATION


def describe_batch(graph: Graph) -> str:
    """Return the size of a graph's batch, such as `a batch of 6 rows of an evaluation`."""
    rows = "1 row" if graph.batch == 1 else f"{graph.batch} rows"
    return f"a batch of {rows}{' of an evaluation' * _is_evaluation(graph)}"


def nearest_sizes(graph: Graph, parts: int) -> str:
    """Return a hint with the nearest sizes of the batch that are multiples of `parts`."""
    key = "data.eval.batch" if _is_evaluation(graph) else "batch"
    below = graph.batch - graph.batch % parts
    sizes = [size for size in (below, below + parts) if size]
    return "use " + " or ".join(f"{key}: {size}" for size in sizes)


def _is_evaluation(graph: Graph) -> bool:
    return graph.name.endswith(EVALUATION)
