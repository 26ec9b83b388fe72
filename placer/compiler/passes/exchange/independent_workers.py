"""Checks that asynchronous workers compute their gradients independently."""

from __future__ import annotations

from collections.abc import Sequence

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.needed_ops import needed_ops
from placer.compiler.graph.structural_ops import CONVERSIONS, is_conversion
from placer.errors import GraphError
from placer.place.layouts.companions import joins_workers
from placer.place.node_kinds import HETER, WORKER, NodeId


def check_independent_workers(graph: Graph) -> None:
    """Raise GraphError unless workers compute pushed gradients independently.

    A worker must not need values of another worker, and the same workers must push all
    gradients. With backup workers the rule holds for all ops of a step. A heter node
    belongs to the one worker that it computes for.

    Args:
        graph: a graph with layouts. The error names the op at fault.
    """
    pushes = _pushes(graph)
    if not pushes:
        return
    _check_pushing_nodes(graph, pushes)
    needed: Sequence[Op] = graph.ops
    if any(op.is_push for op in graph.ops):
        needed = needed_ops(
            graph.ops,
            lambda op: op.is_push,
            lambda op: () if op.exchange and op.exchange.is_answer else op.operands,
        )
    _check_heter_nodes(graph, needed)
    for op in needed:
        if is_conversion(op.kind) and _joins_workers(graph, op):
            user = next(each for each in needed if op.name in each.operands)
            raise _independence_error(graph, op, user)


def _check_pushing_nodes(graph: Graph, pushes: Sequence[Op]) -> None:
    """Raise GraphError unless the same workers, or heter nodes, compute all gradients."""
    # With backup workers, every worker must compute all gradients.
    gradients = [_computed(graph, op.operands[0]) for op in pushes]
    of_workers = [op for op in gradients if op.known_place.node != HETER]
    if not of_workers:
        return
    most = max(of_workers, key=lambda op: len(graph.nodes(op)))
    places = f"gradients are computed at {most.place}"
    hint = f"place: /node:{WORKER} for all layers, or use 'update: sync' for all optimizers"
    for gradient in of_workers:
        if graph.nodes(gradient) != graph.nodes(most):
            raise GraphError(
                f"{places} and at {gradient.place}, but each asynchronous worker must"
                " compute all of them",
                span=gradient.source,
                hint=hint,
            )
    has_backup = any(not op.is_push for op in pushes)
    if has_backup and len(graph.nodes(most)) < len(graph.cluster.worker_nodes):
        raise GraphError(
            f"{places}, but a step with backup workers needs every worker to compute"
            " gradients",
            span=most.source,
            hint=hint,
        )


def _computed(graph: Graph, name: str) -> Op:
    """Return the op on a worker or heter node that computed a gradient."""
    op = graph.producers[name]
    while op.known_place.node not in (WORKER, HETER):
        op = graph.producers[op.operands[0]]
    return op


def _check_heter_nodes(graph: Graph, needed: Sequence[Op]) -> None:
    """Raise GraphError unless each heter node computes for one worker."""
    workers = graph.cluster.worker_nodes
    worker_of: dict[str, NodeId] = {}
    for op in needed:
        if op.structure.directive or op.known_place.node != HETER:
            continue
        nodes = graph.nodes(op)
        if len(nodes) != len(workers):
            raise GraphError(
                f"each of the {len(workers)} asynchronous workers needs its own heter node"
                f" or heter thread, but {op.place} has {len(nodes)}",
                span=op.source,
                hint=f"place: /node:{HETER}, with {len(workers)} such nodes or threads, or"
                " use 'update: sync' for all optimizers",
            )
        for worker, node in zip(workers, nodes, strict=True):
            if worker_of.setdefault(node, worker) != worker:
                raise GraphError(
                    f"{node} computes for {worker_of[node]}, but at {op.place} for"
                    f" {worker}: an asynchronous heter node serves one worker",
                    span=op.source,
                    hint="use the same heter nodes in the same order, or 'update: sync'"
                    " for all optimizers",
                )


def _independence_error(graph: Graph, conversion: Op, user: Op) -> GraphError:
    """Return the error about an op that needs values of several workers."""
    (name,) = conversion.operands
    forward = graph.producers[user.operands[0]] if user.is_gradient else user
    hint = "use 'update: sync' for all optimizers"
    match graph.layout(name):
        case "S":
            what = f"the rows of '{name}' of all workers"
        case "P":
            what = f"'{name}' over the rows of all workers"
            if not graph.tensor_type(name).rank:
                hint = f"minimize '{name}' itself, or {hint}"
        case _:
            what = f"'{name}' of {graph.producers[name].place}"
    if forward.kind == "variance":
        hint = f"scope: replica, or {hint}"
    return GraphError(
        f"'{forward.name.partition('.')[0]}' needs {what}, so workers cannot be"
        " asynchronous",
        span=user.source or conversion.source,
        hint=hint,
    )


def has_pushes(graph: Graph) -> bool:
    """Whether workers push gradients asynchronously or with backup workers."""
    return bool(_pushes(graph))


def pushing_nodes(graph: Graph) -> set[tuple[NodeId, ...]]:
    """Return the sets of workers or heter nodes that push gradients."""
    return {graph.nodes(graph.producers[op.operands[0]]) for op in _pushes(graph)}


def _pushes(graph: Graph) -> Sequence[Op]:
    """Return the ops that receive gradients without waiting for all workers."""
    of_first = (op for op in graph.ops if op.exchange and op.exchange.takes_first)
    return [*(op for op in graph.ops if op.is_push), *of_first]


def _joins_workers(graph: Graph, op: Op) -> bool:
    """Whether a node receives data of a worker other than its own."""
    source = graph.producers[op.operands[0]]
    while source.kind == CONVERSIONS["R", "R"]:  # a replica equals its source
        source = graph.producers[source.operands[0]]
    sources = graph.nodes(source)
    layouts = graph.layout(op.operands[0]), graph.layout(op.name)
    targets = graph.nodes(op)
    if layouts == ("R", "P") and len(targets) > 1:
        return True  # the value counts on one worker, and the others' pushes lack it
    return joins_workers(layouts, sources, targets, graph.cluster.worker_nodes)
