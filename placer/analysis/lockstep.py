"""Checks that workers need not go in lockstep: that each computes its gradients by itself."""

from __future__ import annotations

from collections.abc import Sequence

from placer.errors import GraphError
from placer.graph.graph import Graph, Op
from placer.graph.kinds import PUSHES, is_conversion
from placer.graph.needed_ops import needed_ops
from placer.layouts.conversions import Conversion
from placer.node_kinds import WORKER, NodeId


def check_lockstep(graph: Graph) -> None:
    """Raise GraphError if a gradient that a worker pushes, or anything in a step with
    backup workers, needs something of another worker, or if gradients are pushed by
    different workers.

    `graph` has layouts. The error names the op that needs it.
    """
    pushes = _pushes(graph)
    if not pushes:
        return
    for op in pushes:
        gradient = graph.producers[op.operands[0]]
        if graph.nodes(gradient) != pushing_nodes(graph):
            first = graph.producers[pushes[0].operands[0]]
            raise GraphError(
                f"gradients are computed at {first.place} and at {gradient.place}:"
                " without lockstep each worker must compute all of them",
                span=gradient.source,
                hint=f"place: /node:{WORKER} for all layers, or use 'update: sync' for all"
                " optimizers",
            )
    needed: Sequence[Op] = graph.ops
    if graph.of_kind(*PUSHES):
        needed = needed_ops(
            graph.ops,
            lambda op: op.kind in PUSHES,
            lambda op: () if op.kind == "pull" else op.operands,
        )
    for op in needed:
        if is_conversion(op.kind) and _joins_workers(graph, op):
            user = next(each for each in needed if op.name in each.operands)
            raise _lockstep_error(graph, op, user)


def _lockstep_error(graph: Graph, conversion: Op, user: Op) -> GraphError:
    """Return the error about an op that uses something of several workers."""
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
        f"'{forward.name.partition('.')[0]}' needs {what}, so they must go in lockstep",
        span=user.source or conversion.source,
        hint=hint,
    )


def pushing_nodes(graph: Graph) -> tuple[NodeId, ...]:
    """Return the workers that push gradients, without lockstep or with backup workers."""
    for op in _pushes(graph):
        return graph.nodes(graph.producers[op.operands[0]])
    return ()


def _pushes(graph: Graph) -> Sequence[Op]:
    """Return the ops that take gradients of workers without waiting for all of them."""
    return [*graph.of_kind(*PUSHES), *graph.of_kind("sum_of_first")]


def _joins_workers(graph: Graph, op: Op) -> bool:
    """Whether a node gets something of several workers, or a worker of another one."""
    source = graph.producers[op.operands[0]]
    layouts = graph.layout(op.operands[0]), graph.layout(op.name)
    targets = graph.nodes(op)
    conversion = Conversion(
        layouts, graph.nodes(source), targets, graph.batch, graph.cluster.workers
    )
    for target in targets:
        workers = {
            piece.source
            for piece in conversion.pieces_for(target)
            if NodeId(piece.source).kind == WORKER
        }
        own = {target} if NodeId(target).kind == WORKER else workers
        if len(workers) > 1 or workers - own:
            return True
        if layouts == ("R", "P") and len(targets) > 1:
            return True  # it counts on one worker only, and not in what others push
    return False
