"""Groups nodes that run identical ops, so that one analysis serves the whole group.

Nodes of a class run the same ops on the same number of rows, and exchange messages in the
same way. Swapping two of them changes only which of the two counts as repeating work (see
`placer.compiler.schedule.costs`). Some nodes of a place differ from the others. One node may send a
value that all of them have, or receive a value for all of them. Others exchange rows with
only some other nodes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from placer.compiler.graph.graph import Graph
from placer.compiler.graph.structural_ops import is_conversion
from placer.place.layouts import Layout
from placer.place.layouts.partition import row_shard
from placer.place.node_kinds import HETER, WORKER, NodeId


class NodeClasses:
    """The classes of interchangeable nodes in some graphs of one cluster."""

    def __init__(self, graphs: Iterable[Graph]) -> None:
        graphs = tuple(graphs)
        # Nodes with equal signatures form a class. A signature lists a node's features.
        signatures: dict[str, list[Hashable]] = {
            node: [node.kind] for node in graphs[0].cluster.all_nodes()
        }
        for graph in graphs:
            for number, nodes in enumerate(node_tuples(graph)):
                for i, role in enumerate(_roles(graph, nodes)):
                    signatures[nodes[i]].append((number, role))
            for node in _unique_nodes(graph):
                signatures[node].append(node)
        self.classes: Mapping[str, Sequence[str]] = _group_nodes(signatures)
        """The nodes of each class in order, by the first node."""
        self._representatives = {
            node: first for first, nodes in self.classes.items() for node in nodes
        }

    def representative(self, node: str) -> str:
        """Return the first node of a node's class, possibly the node itself."""
        return self._representatives[node]


def _group_nodes(signatures: Mapping[str, Sequence[Hashable]]) -> dict[str, list[str]]:
    groups: dict[Hashable, list[str]] = {}
    for node, signature in signatures.items():
        groups.setdefault(tuple(signature), []).append(node)
    return {nodes[0]: nodes for nodes in groups.values()}


def node_tuples(graph: Graph) -> Iterable[tuple[str, ...]]:
    """Return every distinct tuple of nodes that runs an op."""
    of_place = {id(op.place): op for op in graph.ops if not op.structure.directive}
    return dict.fromkeys(map(graph.nodes, of_place.values()))


def _roles(graph: Graph, nodes: Sequence[str]) -> Iterator[Hashable]:
    """Yield the role of each node of a place: whether it has an extra row of a batch and of
    a microbatch. Heter nodes have rows of different workers, so each has its own role."""
    workers = graph.cluster.workers
    if row_shard(nodes, 0, workers).num_parts != len(nodes):
        yield from nodes
        return
    batches = graph.batch, graph.batch // graph.microbatches
    longer_parts = [batch % len(nodes) for batch in batches]
    for i in range(len(nodes)):
        yield tuple([i < count for count in longer_parts])


def _unique_nodes(graph: Graph) -> Iterator[str]:
    """Yield the nodes whose messages differ from those of all other nodes."""
    for layouts, sources, targets in dict.fromkeys(_conversions(graph)):
        source_set, target_set = set(sources), set(targets)
        if {sources[0].kind, targets[0].kind} == {WORKER, HETER}:
            yield from (*sources, *targets)  # each node has different companions
            continue
        match layouts:
            case "R", "P":  # only one target counts the value in the sum
                yield next((node for node in targets if node in source_set), targets[0])
                yield sources[0]
            case "R", _ if not source_set >= target_set:  # the first source sends it
                yield sources[0]
            case (("P" | "S"), "P") if not target_set >= source_set:
                yield targets[
                    0
                ]  # the first target also receives the parts of other nodes
            case "S", "S" if sources != targets and 1 not in (
                len(sources),
                len(targets),
            ):
                yield from (*sources, *targets)


_Conversion = tuple[
    tuple[Layout | None, Layout | None], tuple[NodeId, ...], tuple[NodeId, ...]
]


def _conversions(graph: Graph) -> Iterator[_Conversion]:
    """Yield each change of layout or nodes: layouts, source nodes and target nodes."""
    values = graph.values
    for op in graph.ops:
        if is_conversion(op.kind):
            layouts = values[op.operands[0]].layout, op.result.layout
            yield layouts, graph.nodes(graph.producers[op.operands[0]]), graph.nodes(op)
    for edge, receive in graph.receives.items():
        send = graph.sends[edge]
        for name, result in zip(send.operands, receive.results, strict=True):
            layouts = values[name].layout, result.layout
            yield layouts, graph.nodes(send), graph.nodes(receive)
