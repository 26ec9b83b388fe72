"""Finds the ops that a node runs for each asynchronous message, not once a step."""

from __future__ import annotations

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.needed_ops import needed_ops


def served_ops(graph: Graph, node: str) -> dict[int, tuple[Op, ...]]:
    """Return the ops that a node runs for each message, by edge.

    For a `push` edge these are the ops from a worker's gradients to the new parameters, for
    a `pull` edge the ops that send the parameters. A worker that runs its own optimizer
    applies the received sums. Empty for a node without asynchronous tables.
    """
    ops = graph.ops_on(node)
    served = {}
    for op in ops:
        exchange = op.exchange
        if exchange is None or not op.is_asynchronous:
            continue
        if op.structure.sends and exchange.is_answer and not exchange.is_by_key:
            roots = {op}
        elif not op.structure.receives:
            continue
        elif exchange.handling == "applies":
            roots = _ops_after(ops, op)
        elif exchange.handling == "adds":
            roots = {op}
        elif exchange.handling == "answers":
            roots = {each for each in _ops_after(ops, op) if each.structure.sends}
        else:
            continue
        needed = needed_ops(ops, roots.__contains__, _operands_of)
        served[int(op.attrs["edge"])] = tuple(needed)
    return served


def serves_workers(graph: Graph, node: str) -> bool:
    """Whether a node handles each worker's message of each step as it arrives."""
    return any(
        op.structure.receives
        and op.is_push
        and op.exchange is not None
        and op.exchange.to == "servers"
        and op.exchange.moves == "gradients"
        for op in graph.ops_on(node)
    )


def is_of_table(op: Op) -> bool:
    """Whether a table runs the op on its own values of the parameter."""
    return op.kind == "store" or op.structure.update is not None


def _operands_of(op: Op) -> tuple[str, ...]:
    if op.exchange is not None and op.exchange.moves == "sums":
        return ()  # the sums belong to the requesting worker
    return op.operands[1:] if is_of_table(op) else op.operands


def _ops_after(ops: list[Op], first: Op) -> set[Op]:
    """Return an op and all ops that depend on it."""
    found = {first}
    values = {value.name for value in first.results}
    for op in ops:
        if not values.isdisjoint(op.operands):
            found.add(op)
            values.update(value.name for value in op.results)
    return found
