"""State without lockstep: that of the first worker.

A step updates some state by itself, such as the running statistics of `batch_norm`. In
lockstep that needs all rows of a step. Without lockstep each worker would have a state of
its own, and only the first worker, or its heter node, keeps one, from its own rows:

    %bn.mean.row_estimate = row_estimate(%bn.mean) @/node:worker/cpu
    %new = moving_average(%bn.running_mean, %bn.mean.row_estimate) @/node:worker:0/cpu
    store(%bn.running_mean, %new) @/node:worker:0/cpu

Evaluations and predictions copy it to the others.
"""

from __future__ import annotations

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.needed_ops import needed_ops
from placer.compiler.graph.rewriter import Rewriter
from placer.compiler.graph.structural_ops import ROW_ESTIMATE
from placer.place.node_kinds import HETER, WORKER
from placer.place.types import BATCH

_WHY = "without lockstep, state is that of the first worker"


def state_of_first_worker(graph: Graph) -> Graph:
    """Return the graph in which state of workers, or of heter nodes, is updated on the
    first of them."""
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
    """Return the ops that compute new states from old ones, and nothing else. What they
    use of a step, such as the mean of its rows, is computed where the rows are."""
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
    """Whether an op stores state that several workers have."""
    if op.kind != "store" or not graph.producers[op.operands[0]].attrs.get("state"):
        return False
    return op.known_place.node in (WORKER, HETER) and len(graph.nodes(op)) > 1
