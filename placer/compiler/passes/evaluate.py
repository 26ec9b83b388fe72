"""evaluate: reduce the graph to an evaluation, which computes only the metrics.

Needs a sliced graph. Afterwards the graph contains the metrics and the ops they depend
on, without gradients, residuals, updates and stores. Places stay the same as in the
training step. Each `if_training` is replaced by its second operand. Ops that depend on no
input have the attribute `once`: they run once, before the first batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.if_training import is_metric, resolve_if_training
from placer.compiler.graph.keyed import without_unused_tables
from placer.compiler.graph.structural_types import count_ids

SUFFIX: Final = ".eval"
"""The suffix of an evaluation graph's name."""


def evaluate(graph: Graph) -> Graph:
    """Run the pass on a graph with an `evaluation_batch`."""
    assert graph.evaluation_batch is not None
    ops = forward_ops(graph, is_metric)
    header = f"{graph.name}{SUFFIX}", graph.cluster, graph.evaluation_batch
    return without_unused_tables(Graph(*header, ops, first_edge=graph.first_edge))


def forward_ops(graph: Graph, is_root: Callable[[Op], bool]) -> tuple[Op, ...]:
    """Return the root ops and all ops they need, as they run outside training."""
    graph = graph.with_ops(map(_uncounted, graph.ops))
    once: set[str] = set()
    ops: list[Op] = []
    for op in resolve_if_training(graph, 1, is_root):
        if op.has_residual:
            op = op.with_values(op.operands, op.tensors)
        if op.attrs.get("training"):
            op = op.with_attrs(training=False)
        exchange = op.exchange
        if exchange and exchange.is_by_key and "group" in op.attrs:  # now synchronous
            op = replace(op, attrs={})
        # Metrics are weighted by the rows of each batch, so they run for every batch.
        if not op.structure.per_batch and once.issuperset(op.operands):
            once.update(value.name for value in op.results)
            op = op.with_attrs(once=True)
        ops.append(op)
    return tuple(ops)


def _uncounted(op: Op) -> Op:
    """Remove the counting that only training does from an op that collects keys."""
    if op.kind != "distinct_keys" or "inputs" not in op.attrs:
        return op
    attrs = {name: each for name, each in op.attrs.items() if name != "inputs"}
    return replace(op, operands=op.operands[: count_ids(op)], attrs=attrs)
