"""evaluate: what of a step an evaluation runs: its records and all they depend on.

Needs a laid-out graph. Afterwards no gradient, residual, update or store is left; the
placement is the training step's.
"""

from __future__ import annotations

from dataclasses import replace

from placer.graph.graph import Graph, Op
from placer.graph.types import ResidualType
from placer.passes.lay_out import check_rows


def evaluate(graph: Graph, batch: int) -> Graph:
    needed: set[str] = set()
    kept: list[Op] = []
    for op in reversed(graph.ops):
        if op.kind == "record" or any(v.name in needed for v in op.results):
            needed.update(op.operands)
            results = tuple(
                v for v in op.results if not isinstance(v.type, ResidualType)
            )
            kept.append(replace(op, results=results))
    kept.reverse()
    evaluation = Graph(f"{graph.name}.eval", graph.cluster, batch, tuple(kept))
    check_rows(evaluation)
    return evaluation
