"""The ops that a node runs for each message without lockstep, and not once a step."""

from __future__ import annotations

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.needed_ops import needed_ops


def served_ops(graph: Graph, node: str) -> dict[int, tuple[Op, ...]]:
    """Return what a server does when a worker sends something, by the number of the edge.

    For a `push` edge these are the ops from the gradients of a worker to the new
    parameters, for a `pull` edge those that send the parameters. A worker that updates does
    the former for the sums that have come. Empty for a node without such tables.
    """
    ops = graph.ops_on(node)
    served = {}
    for op in ops:
        match op.attrs.get("exchange"):
            case "push" | "push_delta" | "push_all" | "pull_sum" if (
                op.structure.receives
            ):
                roots = _ops_after(ops, op)
            case "push_sum" if op.structure.receives:
                roots = {op}
            case "pull" | "pull_sum" if op.structure.sends:
                roots = {op}
            case "push_rows" if op.structure.receives and "group" in op.attrs:
                roots = _ops_after(ops, op)
            case "ask_rows" if op.structure.receives and "group" in op.attrs:
                after = _ops_after(ops, op)
                roots = {each for each in after if each.structure.sends}
            case _:
                continue
        needed = needed_ops(ops, roots.__contains__, _operands_of)
        served[int(op.attrs["edge"])] = tuple(needed)
    return served


def serves_workers(graph: Graph, node: str) -> bool:
    """Whether a node handles messages of workers as they arrive; a worker that updates
    handles what has come before each step."""
    return any(
        op.structure.receives
        and (
            op.attrs.get("exchange") in ("push", "push_sum")
            or (op.attrs.get("exchange") == "push_rows" and "group" in op.attrs)
        )
        for op in graph.ops_on(node)
    )


def is_of_table(op: Op) -> bool:
    """Whether a table does the op, with its own values of the parameter."""
    return op.kind == "store" or op.structure.update is not None


def _operands_of(op: Op) -> tuple[str, ...]:
    if op.attrs.get("exchange") == "pull_sum":
        return ()  # the sums are those of the worker that asks
    return op.operands[1:] if is_of_table(op) else op.operands


def _ops_after(ops: list[Op], first: Op) -> set[Op]:
    """Return an op and all that use its results, directly or not."""
    found = {first}
    values = {value.name for value in first.results}
    for op in ops:
        if not values.isdisjoint(op.operands):
            found.add(op)
            values.update(value.name for value in op.results)
    return found
