"""Keeps the state of asynchronous training on the first worker.

Some ops update state in a step, such as the running statistics of `batch_norm`.
Synchronous training computes the state from all rows of a step. With asynchronous workers,
only the first worker, or its heter node, keeps the state, computed from its own rows:

    %bn.mean.row_estimate = row_estimate(%bn.mean) @/node:worker/cpu
    %new = moving_average(%bn.running_mean, %bn.mean.row_estimate) @/node:worker:0/cpu
    store(%bn.running_mean, %new) @/node:worker:0/cpu

Evaluations and predictions copy the state to the other workers.

Other ops also read the state in training, such as a traced function that updates its own
statistics. Then each worker keeps its own state, which the attribute `per_worker` marks. A
drain copies the state of the first worker to the others, so evaluations and checkpoints use
that of the first.
"""

from __future__ import annotations

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.if_training import is_training_effect, resolve_if_training
from placer.compiler.graph.needed_ops import needed_ops
from placer.compiler.graph.rewriter import Rewriter
from placer.compiler.graph.structural_ops import ROW_ESTIMATE
from placer.place.node_kinds import HETER, WORKER
from placer.place.types import BATCH

_WHY = "asynchronous: only the first worker keeps state"
_WHY_PER_WORKER = "asynchronous: each worker keeps its own state"


def state_of_first_worker(graph: Graph) -> Graph:
    """Move the updates of state to the first worker or heter node, or mark the state."""
    stores = {op for op in graph.ops if _is_state_of_workers(graph, op)}
    if not stores:
        return graph
    per_worker = _states_per_worker(graph, stores)
    stores = {op for op in stores if op.operands[0] not in per_worker}
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
        if op.kind == "parameter" and op.name in per_worker:
            marked = op.with_attrs(per_worker=True)
            rewriter.replace(marked.with_place(op.known_place, _WHY_PER_WORKER))
        elif op in moved or op.name in states:
            first = graph.cluster.first_node(op.known_place)
            rewriter.replace(op.with_place(first, _WHY))
            rewriter.replace_operands(estimates)
    return rewriter.graph()


def _states_per_worker(graph: Graph, stores: set[Op]) -> set[str]:
    """Return the states that training uses for other values than new states."""
    training = resolve_if_training(graph, 0, is_training_effect)
    found: set[str] = set()
    while True:
        left = {op for op in stores if op.operands[0] not in found}
        states = {op.operands[0] for op in left}
        moved = left | _ops_of_states(graph, left, states)
        read = {name for op in training if op not in moved for name in op.operands}
        if not (more := states & read):
            return found
        found |= more


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
