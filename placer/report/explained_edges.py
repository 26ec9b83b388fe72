"""Lists the messages between nodes that carry a value, with the bytes of the value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from msgspec.structs import replace

from placer.compiler.graph.graph import Graph
from placer.compiler.schedule.node_classes import NodeClasses
from placer.place.ids import format_nodes
from placer.place.node_kinds import NodeId
from placer.plan.plan import Edge, EdgeValue, Plan
from placer.report.numbers import format_count
from placer.report.page.arrows import weigh_edge
from placer.report.server_tables import format_range
from placer.system.listed import list_names

_MOST_NAMED = 4
"""The largest number of other values of a message that are named."""


@dataclass(frozen=True, slots=True)
class _Phase:
    """The graph of a step, an evaluation or a prediction, with the classes of its nodes."""

    plan: Plan
    graph: Graph
    classes: NodeClasses


def list_messages(
    plan: Plan, graphs: Sequence[Graph], names: Set[str], what: str
) -> Iterator[str]:
    """Yield lines about the messages that carry values or their copies.

    Args:
        plan: the plan of a build.
        graphs: the graphs of the build.
        names: the names of the values.
        what: the begin of the first line, such as "the parameter is".
    """
    names = {name for graph in graphs for name in _copies(graph, names)}
    by_name = {graph.name: graph for graph in graphs}
    lines: list[str] = []
    for edges, suffix, whole, part in (
        (plan.step_edges, "", "step", "step"),
        (plan.evaluation_edges, ".eval", "evaluation", "evaluation batch"),
        (plan.prediction_edges, ".predict", "prediction", "prediction batch"),
    ):
        if edges:
            graph = by_name[f"{plan.name}{suffix}"]
            phase = _Phase(plan, graph, NodeClasses([graph]))
            for edge in edges:
                lines += _message(phase, edge, names, whole if edge.once else part)
    if lines:
        yield f"  {what} sent between nodes:"
        yield from lines
    else:
        yield f"  {what} not sent between nodes"


def _copies(graph: Graph, names: Set[str]) -> set[str]:
    """Return values with their copies, sums over nodes, and microbatch totals."""
    copies = set(names)
    pending = list(names)
    while pending:
        name = pending.pop()
        for user in graph.uses.get(name, ()):
            structure = user.structure
            if structure.sends:
                results = graph.receives[user.attrs["edge"]].results
            elif structure.copies or structure.reduces or user.kind == "clip_part":
                results = user.results
            else:
                continue
            copy = results[user.operands.index(name)].name
            if copy not in copies:
                copies.add(copy)
                pending.append(copy)
    return copies


def _message(phase: _Phase, edge: Edge, names: Set[str], when: str) -> Iterator[str]:
    carried = [v for v in edge.values if names & {v.operand, v.result, v.whole}]
    if not carried:
        return
    how = ""
    if edge.declared:
        how = edge.declared.words.format(every=edge.every, first=edge.first) + "; "
    yield (
        f"    edge {edge.id}: {format_nodes(edge.sources)} -> "
        f"{format_nodes(edge.targets)}, "
        f"{', '.join(_describe_move(each, edge) for each in carried)}, {how}"
        f"{_size(phase, edge, carried, when)}"
    )


def _size(phase: _Phase, edge: Edge, carried: Sequence[EdgeValue], when: str) -> str:
    """Return the bytes of values, and of the message that they travel in."""
    average = " on average" if edge.every > 1 else ""
    most = "at most " if edge.is_by_key else ""
    others = list(
        dict.fromkeys(each.operand for each in edge.values if each not in carried)
    )
    together = list_names(others, _MOST_NAMED)
    if not edge.nbytes:
        inside = f"between threads of one process, in each {when}"
        return f"{inside}, together with {together}" if others else inside
    nbytes = _bytes_of(phase, edge, carried)
    size = f"{most}{format_count(nbytes)} bytes per {when}{average}"
    if not others:
        return size
    return (
        f"{size}, in a message of {format_count(edge.nbytes)} bytes together with"
        f" {together}"
    )


def _bytes_of(phase: _Phase, edge: Edge, carried: Sequence[EdgeValue]) -> int:
    """Return the part of the bytes of an edge that some of its values have."""
    if len(carried) == len(edge.values):
        return edge.nbytes
    group_of = {NodeId(node): 0 for node in (*edge.sources, *edge.targets)}

    def weight(part: Edge) -> int:
        pairs = weigh_edge(phase.graph, phase.plan, part, group_of, phase.classes)
        return sum(pairs.values())

    if edge.is_push and all(value.layouts == ("R", "R") for value in edge.values):
        # Each worker sends its own change of each value.
        total = sum(value.size for value in edge.values)
        return edge.nbytes * sum(value.size for value in carried) // total
    of_values = weight(replace(edge, values=tuple(carried)))
    return edge.nbytes * of_values // weight(edge)


def _describe_move(moved: EdgeValue, edge: Edge) -> str:
    have, need = moved.layouts
    part = ""
    if moved.start is not None and moved.stop is not None:
        part = f" (elements {format_range(moved.start, moved.stop)})"
    if edge.exchange is not None:
        return f"{moved.operand}{part}"
    order = "ring" if edge.ring else "node"
    summed = f", summed in {order} order" if have == "P" else ""
    return f"{moved.operand}{part} {have} -> {need}{summed}"
