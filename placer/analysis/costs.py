"""What a step costs each node, by what its ops declare."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from placer.analysis.flops import Known, flops
from placer.analysis.node_classes import Alike
from placer.build.plan import Edge, Moved
from placer.graph.graph import Graph, Op
from placer.graph.kinds import SCALES, STRUCTURAL, is_computed, is_conversion
from placer.layouts.conversions import Conversion, part, share_of
from placer.types import TensorType


@dataclass(slots=True)
class Cost:
    """Declared FLOPs of one node in one step: of the model, of what is computed again on
    other nodes or for backward, and of the exchange itself (R5)."""

    model: int = 0
    replicated: int = 0
    exchange: int = 0


def step_costs(graph: Graph, edges: Sequence[Edge], alike: Alike) -> dict[str, Cost]:
    """What each node computes in one step: by the first of those that are alike."""
    costs = {node: Cost() for node in alike.classes}
    known: Known = {}
    for op in graph.ops:
        if op.kind in STRUCTURAL or is_conversion(op.kind):
            continue
        nodes = graph.nodes(op)
        split = _is_split(graph, op)
        exchanged = op.kind in SCALES
        again = op.attrs.get("again", False)
        for i, node in enumerate(nodes):
            if node not in costs:
                continue
            rows = _rows(graph, op, i)
            spent, repeated = _over_microbatches(graph, op, rows, known)
            if exchanged:
                costs[node].exchange += spent
                continue
            if again:
                repeated = spent
            elif i > 0:
                repeated = repeated + _fixed(graph, op, known) if split else spent
            costs[node].model += spent - repeated
            # A gradient that sums over rows has fewer additions in its parts than whole.
            costs[node].replicated += max(0, repeated)
    for edge in edges:
        for value in edge.values:
            if value.layouts[0] == "P":
                for target, spent in _additions(edge, value, costs, graph):
                    costs[target].exchange += spent
    return costs


@dataclass(frozen=True, slots=True)
class Repeat:
    """An op that takes rows of the batch, all of them on each of several nodes, with its
    gradient: what those after the first compute again, in declared FLOPs of a step."""

    op: Op
    nodes: int
    flops: int


def repeats(graph: Graph) -> list[Repeat]:
    """The ops that several nodes compute for the whole batch, the costliest first. Not
    those of which a spec says so: updates at several nodes, what is computed again for
    backward; nor what is made of parameters alone."""
    known: Known = {}
    found: dict[str, int] = {}
    for op in graph.ops:
        nodes = graph.nodes(op)
        if len(nodes) == 1 or not is_computed(op) or is_conversion(op.kind):
            continue
        forward = graph.producers[op.operands[0]] if op.is_gradient else op
        if op.attrs.get("again", False) or op.kind in SCALES or _is_split(graph, op):
            continue
        if _takes_rows(graph, forward):
            spent, _ = _over_microbatches(graph, op, graph.batch, known)
            found[forward.name] = found.get(forward.name, 0) + spent * (len(nodes) - 1)
    ops = {op.name: op for op in graph.ops}
    every = [
        Repeat(ops[name], len(graph.nodes(ops[name])), spent)
        for name, spent in found.items()
        if spent
    ]
    return sorted(every, key=lambda each: -each.flops)


def _takes_rows(graph: Graph, op: Op) -> bool:
    # The last operand of a call says where a row stands, whether it asks or not.
    operands = op.operands[:-1] if op.kind == "call" else op.operands
    kinds = (graph.values[name].type for name in operands)
    return any(isinstance(kind, TensorType) and kind.has_rows for kind in kinds)


def turn_cost(graph: Graph, op: Op, node: str, known: Known) -> int:
    """What a node computes of an op at once: for the first, and largest, microbatch, or
    in a step, where the op runs once."""
    rows = _rows(graph, op, graph.nodes(op).index(node))
    if graph.is_repeated(op) and _differs(graph, op):
        low, high = part(rows, 0, graph.microbatches)
        rows = high - low
    return flops(graph, op, rows, known)


def _is_split(graph: Graph, op: Op) -> bool:
    """Whether each node computes its own rows."""
    return len(graph.nodes(op)) > 1 and any(
        graph.values[name].layout == "S" for name in op.operands
    )


def _rows(graph: Graph, op: Op, number: int) -> int:
    """How many rows of a batch the op's node of that number computes."""
    if not _is_split(graph, op):
        return graph.batch
    share = share_of(graph.nodes(op), number, graph.cluster.workers)
    return share.size(graph.batch)


def _differs(graph: Graph, op: Op) -> bool:
    """Whether each microbatch has its own rows of what the op takes."""
    return any(graph.values[name].over == "S" for name in op.operands)


def _over_microbatches(
    graph: Graph, op: Op, rows: int, known: Known
) -> tuple[int, int]:
    """What an op costs in one step, and what of it is computed again for each microbatch
    after the first."""
    parts = graph.microbatches
    if not graph.is_repeated(op):
        return flops(graph, op, rows, known), 0
    if not _differs(graph, op):
        once = flops(graph, op, rows, known)
        return parts * once, (parts - 1) * once
    bounds = (part(rows, i, parts) for i in range(parts))
    spent = sum(flops(graph, op, high - low, known) for low, high in bounds)
    return spent, (parts - 1) * _fixed(graph, op, known)


def _fixed(graph: Graph, op: Op, known: Known) -> int:
    """What of an op's FLOPs is the same however many rows there are: every node that
    has some of the rows computes it."""
    return 2 * flops(graph, op, 1, known) - flops(graph, op, 2, known)


def _additions(
    edge: Edge, value: Moved, targets: Container[str], graph: Graph
) -> Iterator[tuple[str, int]]:
    """What it takes to add up the parts of a value that come to these of the nodes."""
    kind = TensorType(value.dtype, value.shape)  # type: ignore[arg-type]
    repeated = graph.is_repeated(graph.sends[edge.id])
    times = graph.microbatches if repeated else 1
    batch = graph.batch // times
    ways = value.layouts, edge.sources, edge.targets
    conversion = Conversion(*ways, batch, graph.cluster.workers)
    numel = kind.numel(batch)
    for target in filter(targets.__contains__, edge.targets):
        found = conversion.pieces(target)
        first = {piece.into: piece for piece in reversed(found)}  # others are added to
        yield (
            target,
            times
            * sum(
                numel if piece.whole else numel // batch * (piece.high - piece.low)
                for piece in found
                if piece is not first[piece.into]
            ),
        )
