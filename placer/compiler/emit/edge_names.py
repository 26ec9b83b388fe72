"""Names edges for programs: `GRADIENTS_TO_PS0 = 3`.

The name contains the kind of the sent values and the nodes at the other end. If a node sends
and receives on an edge, the name is that of a collective operation: `ALL_GATHER_PARAMETERS`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from placer.compiler.emit.notes import is_paired, layouts_of, short_place
from placer.compiler.emit.roles import describe
from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.structural_ops import MOVING_KINDS
from placer.compiler.schedule.units import LoweredGraph
from placer.place import Place
from placer.place.layouts.moved_pieces import Conversion
from placer.place.node_kinds import NodeId
from placer.plan.hooks import HookName

_PREFIXES: Mapping[HookName, str] = {
    "step": "",
    "evaluate": "EVAL_",
    "predict": "PREDICT_",
}
_PLURALS = {"ps": "SERVERS"}
_UNNAMED = {*MOVING_KINDS, "grad"}


class EdgeNames:
    """The names of the edges of all programs of a build.

    Args:
        graphs: the graphs of the hooks.
    """

    def __init__(self, graphs: Sequence[LoweredGraph]) -> None:
        self._edges: dict[str, list[tuple[LoweredGraph, int]]] = defaultdict(list)
        self._names: dict[tuple[HookName, int, bool, str], str] = {}
        for lowered in graphs:
            graph = lowered.graph
            for edge, receive in sorted(graph.receives.items()):
                nodes = *graph.nodes(graph.sends[edge]), *graph.nodes(receive)
                for node in dict.fromkeys(nodes):
                    self._edges[node].append((lowered, edge))

    def of_node(self, node: str) -> Iterator[tuple[int, str]]:
        """Yield the number and the name of each edge of a node. Names need not be unique."""
        own = self._edges.get(node, [])
        names = [self._name(lowered, edge, node) for lowered, edge in own]
        counts = Counter(names)
        for (lowered, edge), name in zip(own, names, strict=True):
            if counts[name] > 1:
                value = lowered.graph.sends[edge].operands[0]
                name = self._name(lowered, edge, node, value)
            yield edge, name

    def _name(
        self, lowered: LoweredGraph, edge: int, node: str, value: str = ""
    ) -> str:
        graph = lowered.graph
        is_sender = node in graph.nodes(graph.sends[edge])
        key = lowered.hook, edge, is_sender, value
        if key not in self._names:
            name = _name(graph, edge, is_sender, value)
            self._names[key] = f"{_PREFIXES[lowered.hook]}{name}"
        return self._names[key]


def _name(graph: Graph, edge: int, is_sender: bool, value: str) -> str:
    send, receive = graph.sends[edge], graph.receives[edge]
    sources, targets = graph.nodes(send), graph.nodes(receive)
    values = _values(graph, send, value)
    is_pair = is_paired(graph, send)
    source = _place_name(send.place, 1 if is_pair else len(sources))
    target = _place_name(send.attrs["to"], 1 if is_pair else len(targets))
    if {*sources}.isdisjoint(targets):
        return f"{values}_TO_{target}" if is_sender else f"{values}_FROM_{source}"
    if {*sources} == {*targets} and send.is_push:
        return f"{values}_TO_ALL_{target}"
    if _is_within_processes(graph, send):
        is_sum = any(source == "P" for source, _ in layouts_of(graph, send))
        return f"{'REDUCE' if is_sum else 'BROADCAST'}_{values}_IN_PROCESS"
    match [*{*layouts_of(graph, send)}]:
        case [("P", "F")]:
            return f"REDUCE_SCATTER_{values}"
        case [("F", "R")]:
            return f"ALL_GATHER_{values}"
        case [("P", "R")] if {*sources} == {*targets}:
            return f"ALL_REDUCE_{values}"
        case [("P", "R")] if len(targets) == 1:
            return f"REDUCE_{values}_TO_{target}"
        case [("R", "R")] if len(sources) == 1:
            return f"BROADCAST_{values}_FROM_{source}"
    return f"{values}_FROM_{source}_TO_{target}"


def _is_within_processes(graph: Graph, send: Op) -> bool:
    """Whether all messages go between threads of one process."""
    sources = graph.nodes(send)
    targets = graph.nodes(graph.receives[send.attrs["edge"]])
    if all(NodeId(node).process == node for node in targets):
        return False
    workers = graph.cluster.workers
    conversions = [
        Conversion(layouts, sources, targets, graph.batch, workers)
        for layouts in {*layouts_of(graph, send)}
        if "F" not in layouts
    ]
    return all(
        NodeId(piece.source).process == NodeId(target).process
        for conversion in conversions
        for target in targets
        for piece in conversion.pieces_for(target)
    )


def _values(graph: Graph, send: Op, value: str) -> str:
    """Return the kind of the values, `GRADIENTS`, with a value name: `GRADIENTS_H1_W`."""
    words = describe(graph, send.operands)
    exchange = send.exchange
    if exchange is not None and exchange.moves == "sums":
        words = "gradient sums"
    elif exchange is not None and exchange.is_by_key and exchange.moves == "gradients":
        words = "row gradients"
    of_value = [part for part in value.split(".") if part not in _UNNAMED]
    parts = [words, *of_value]
    if "bucket" in send.attrs:
        parts.append(f"bucket{send.attrs['bucket']}")
    return _constant("_".join(parts))


def _place_name(place: Place | None, count: int) -> str:
    """Return the name of a place's nodes: `WORKER1`, `WORKERS`, `SERVERS`."""
    text = short_place(place)
    if count > 1 and text.isidentifier():
        return _PLURALS.get(text, f"{_constant(text)}S")
    return _constant(re.sub(r":(?=\d)", "", text))


def _constant(words: str) -> str:
    return re.sub(r"\W+", "_", words).strip("_").upper()
