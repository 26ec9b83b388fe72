"""Nodes that do the same, so that what is found of one of them holds of all.

Nodes are alike when they run the same ops of the given graphs, with as many rows, and
are alike to every other node, too: exchanging two of them changes nothing. The first
node of a place is not like the rest, since it makes sums and gives what all have; nor
are nodes that take rows of some others and not of all.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from placer.graph.graph import Graph
from placer.graph.kinds import is_conversion
from placer.layouts import Layout
from placer.layouts.conversions import share_of


class Alike:
    """The classes of nodes that are alike in all of these graphs, of one cluster."""

    def __init__(self, graphs: Iterable[Graph]) -> None:
        graphs = tuple(graphs)
        marks: dict[str, list[Hashable]] = {
            node: [node.split(":")[0]] for node in graphs[0].cluster.all_nodes()
        }
        for graph in graphs:
            for number, nodes in enumerate(_node_tuples(graph)):
                for i, mark in enumerate(_marks(graph, nodes)):
                    marks[nodes[i]].append((number, mark))
            for node in _alone(graph):
                marks[node].append(node)
        self.classes: Mapping[str, Sequence[str]] = _classes(marks)
        """The nodes of each class, in their order, by the first of them."""
        self._first = {
            node: first for first, nodes in self.classes.items() for node in nodes
        }

    def first(self, node: str) -> str:
        """The first of the nodes that are like this one: itself, where it is that."""
        return self._first[node]


def _classes(marks: Mapping[str, Sequence[Hashable]]) -> dict[str, list[str]]:
    found: dict[Hashable, list[str]] = {}
    for node, mark in marks.items():
        found.setdefault(tuple(mark), []).append(node)
    return {nodes[0]: nodes for nodes in found.values()}


def _node_tuples(graph: Graph) -> Iterable[tuple[str, ...]]:
    """Every set of nodes that runs some op, once."""
    of_place = {id(op.place): graph.nodes(op) for op in graph.ops}
    return dict.fromkeys(of_place.values())


def _marks(graph: Graph, nodes: Sequence[str]) -> Iterator[Hashable]:
    """What tells nodes of one place apart: which is the first, and how many rows each
    has. Heter nodes have rows of different workers, each its own."""
    workers = graph.cluster.workers
    if share_of(nodes, 0, workers).parts != len(nodes):
        yield from nodes
        return
    batches = graph.batch, graph.batch // graph.microbatches
    longer = [batch % len(nodes) for batch in batches]
    for i in range(len(nodes)):
        yield i == 0, *(i < some for some in longer)


def _alone(graph: Graph) -> Iterator[str]:
    """Nodes that are like no other because of what they send or take."""
    for (have, need), sources, targets in dict.fromkeys(_ways(graph)):
        if sources == targets:
            continue
        if (have, need) == ("S", "S") and len(sources) > 1 and len(targets) > 1:
            yield from (*sources, *targets)
        if (have, need) == ("R", "P"):  # the one that holds the value
            there = set(sources)
            yield from [node for node in targets if node in there][:1]


_Way = tuple[tuple[Layout | None, Layout | None], tuple[str, ...], tuple[str, ...]]


def _ways(graph: Graph) -> Iterator[_Way]:
    """Every change of layout or of nodes: the layouts, who has and who needs the value."""
    values = graph.values
    for op in graph.ops:
        if is_conversion(op.kind):
            layouts = values[op.operands[0]].layout, op.result.layout
            yield layouts, graph.nodes(graph.producers[op.operands[0]]), graph.nodes(op)
    for edge, listen in graph.listens.items():
        send = graph.sends[edge]
        for name, result in zip(send.operands, listen.results, strict=True):
            layouts = values[name].layout, result.layout
            yield layouts, graph.nodes(send), graph.nodes(listen)
