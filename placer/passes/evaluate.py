"""evaluate: what of a step an evaluation runs: its metrics and all they depend on.

Needs a sliced graph. Afterwards no gradient, residual, update or store is left, and
each `if_training` is its second operand; the placement is the training step's. What
depends on no input is `once`: it is made before the first batch, and not for each.
"""

from __future__ import annotations

from placer.analysis.if_training import resolved
from placer.graph.graph import Graph, Op
from placer.types import ResidualType


def evaluate(graph: Graph, batch: int) -> Graph:
    once: set[str] = set()
    kept: list[Op] = []
    for op in resolved(graph, 1, _is_told):
        tensors = tuple(v for v in op.results if not isinstance(v.type, ResidualType))
        if tensors != op.results:
            op = op.of(op.operands, tensors)
        if op.attrs.get("training"):
            op = op.with_attrs(training=False)
        # A metric is recorded for every batch: it counts by the rows of each.
        varies = op.kind in ("read", "record")
        if not varies and once.issuperset(op.operands):
            once.update(value.name for value in op.results)
            op = op.with_attrs(once=True)
        kept.append(op)
    return Graph(f"{graph.name}.eval", graph.cluster, batch, tuple(kept))


def _is_told(op: Op) -> bool:
    """Whether a metric is recorded, and not a loss that is watched in training only."""
    return op.kind == "record" and not op.attrs.get("watched")
