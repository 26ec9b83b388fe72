"""Keeps the state of asynchronous training on the first worker.

Some ops update state in a step, such as the running statistics of `batch_norm`.
Synchronous training computes the state from all rows of a step. With asynchronous workers,
only the first worker, or its heter node, keeps the state, computed from its own rows:

    %bn.mean.row_estimate = row_estimate(%bn.mean) @/node:worker/cpu
    %new = moving_average(%bn.running_mean, %bn.mean.row_estimate) @/node:worker:0/cpu
    store(%bn.running_mean, %new) @/node:worker:0/cpu

Evaluations and predictions copy the state to the other workers.
"""

from __future__ import annotations

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.needed_ops import needed_ops
from placer.compiler.graph.rewriter import Rewriter
from placer.compiler.graph.structural_ops import ROW_ESTIMATE
from placer.place.node_kinds import HETER, WORKER
from placer.place.types import BATCH

_WHY = "asynchronous: only the first worker keeps state"


def state_of_first_worker(graph: Graph) -> Graph:
    """Move the updates of state to the first worker or heter node."""
    stores = {op for op in graph.ops if _is_state_of_workers(graph, op)}
    if not stores:
        return graph
    states = {op.operands[0] for op in stores}
    moved = stores | _ops_of_states(graph, stores, states)
    estimates: dict[str, str] = {}
    rewriter = Rewriter(graph)
    for op in rewriter:
        if op in moved:
            for name in op.operands:
                producer = graph.producers[name]
                if name in states or producer in moved or name in estimates:
                    continue
                result = rewriter.new_value(name, ROW_ESTIMATE)
                estimates[name] = result.name
                place, source = producer.place, op.source
                rewriter.insert(
                    Op(ROW_ESTIMATE, (name,), (result,), {}, place, source, _WHY)
                )
        if op in moved or op.name in states:
            first = graph.cluster.first_node(op.known_place)
            rewriter.replace(op.with_place(first, _WHY))
            rewriter.replace_operands(estimates)
    return rewriter.graph()


def _ops_of_states(graph: Graph, stores: set[Op], states: set[str]) -> set[Op]:
    """Return the ops that only compute new states from old ones."""
    # Ops that read rows, such as the mean of a batch, stay where the rows are.
    of_others = {
        *needed_ops(graph.ops, lambda op: op.structure.effect and op not in stores)
    }
    found: set[Op] = set()
    values = {*states}
    for op in needed_ops(graph.ops, stores.__contains__):
        has_rows = any(BATCH in graph.tensor_type(n).shape for n in op.operands)
        if op not in of_others and not has_rows and not values.isdisjoint(op.operands):
            found.add(op)
            values.update(value.name for value in op.results)
    return found


def _is_state_of_workers(graph: Graph, op: Op) -> bool:
    """Whether an op stores the state of several workers."""
    if op.kind != "store" or not graph.producers[op.operands[0]].attrs.get("state"):
        return False
    return op.known_place.node in (WORKER, HETER) and len(graph.nodes(op)) > 1
