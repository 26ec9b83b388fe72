"""evaluate: reduce the graph to what an evaluation runs: the metrics.

Needs a sliced graph. Afterwards there are the metrics and the ops that they depend on,
without gradients, residuals, updates and stores. Places are those of the training step.
Each `if_training` is its second operand. Ops that depend on no input have the attribute
`once`: they run once, before the first batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.if_training import is_metric, resolve_if_training

SUFFIX: Final = ".eval"
"""What the name of an evaluation adds to that of the graph of its model."""


def evaluate(graph: Graph) -> Graph:
    """Run the pass. The graph has an `evaluation_batch`."""
    assert graph.evaluation_batch is not None
    ops = forward_ops(graph, is_metric)
    header = f"{graph.name}{SUFFIX}", graph.cluster, graph.evaluation_batch
    return Graph(*header, ops, first_edge=graph.first_edge)


def forward_ops(graph: Graph, is_root: Callable[[Op], bool]) -> tuple[Op, ...]:
    """Return the ops for which `is_root` is true and all ops that these need, as they
    run outside training."""
    graph = graph.with_ops(map(_uncounted, graph.ops))
    once: set[str] = set()
    ops: list[Op] = []
    for op in resolve_if_training(graph, 1, is_root):
        if op.has_residual:
            op = op.with_values(op.operands, op.tensors)
        if op.attrs.get("training"):
            op = op.with_attrs(training=False)
        exchange = op.exchange
        if exchange and exchange.is_by_key and "group" in op.attrs:  # all in lockstep
            op = replace(op, attrs={})
        # A metric is recorded for every batch, because it is weighted by the batch's
        # rows.
        if not op.structure.per_batch and once.issuperset(op.operands):
            once.update(value.name for value in op.results)
            op = op.with_attrs(once=True)
        ops.append(op)
    return tuple(ops)


def _uncounted(op: Op) -> Op:
    """Return an op that collects keys without what only a training step counts."""
    if op.kind != "distinct_keys" or "inputs" not in op.attrs:
        return op
    attrs = dict(op.attrs)
    count = len(op.operands) - len(attrs.pop("inputs"))
    return replace(op, operands=op.operands[:count], attrs=attrs)
