"""Counts the declared FLOPs of a step, by node and by op."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

from placer.compiler.graph.flops import FlopsCache, flops_by_rows, op_flops
from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.structural_ops import SCALES, is_conversion
from placer.compiler.schedule.node_classes import NodeClasses, node_tuples
from placer.compiler.schedule.served import served_ops
from placer.place.layouts import Layout
from placer.place.layouts.moved_pieces import Conversion, Piece
from placer.place.layouts.partition import part_range, row_shard
from placer.place.types import TensorType
from placer.plan.plan import Edge


@dataclass(slots=True)
class Cost:
    """Declared FLOPs of one node in one step.

    Attributes:
        model: work done once and by no other node.
        replicated: work that other nodes repeat, or that the backward pass recomputes.
        exchange: sums of partial values, scales of updates, and updates of servers by the
            differences of workers.
    """

    model: int = 0
    replicated: int = 0
    exchange: int = 0


def step_costs(
    graph: Graph, edges: Sequence[Edge], node_classes: NodeClasses
) -> dict[str, Cost]:
    """Return the cost of a step for each node.

    Nodes of a class share it, except the first node of a place, whose work the other
    nodes repeat.
    """
    same_cost = group_by_cost(graph, node_classes)
    costs = {node: Cost() for node in same_cost.values()}
    for _, node, part in op_costs(graph, edges, costs):
        cost = costs[node]
        cost.model += part.model
        cost.replicated += part.replicated
        cost.exchange += part.exchange
    return {node: costs[first] for node, first in same_cost.items()}


def op_costs(
    graph: Graph, edges: Sequence[Edge], nodes: Collection[str]
) -> Iterator[tuple[Op, str, Cost]]:
    """Yield the cost of each op in a step, for some of the nodes.

    A receiving op costs the sums of the partial values that it receives.
    """
    counted: dict[int, list[tuple[int, str, int]]] = {}
    known = FlopsCache()
    pushes = _pushes(graph, nodes)
    shared: dict[tuple[object, ...], list[tuple[str, Cost]]] = {}
    has_microbatches = graph.microbatches > 1
    for op in graph.ops:
        if not (op.is_computed or op.structure.update) or is_conversion(op.kind):
            continue
        of_op = graph.nodes(op)
        at = counted.get(id(of_op))
        if at is None:  # the graph shares one object for equal nodes
            at = counted[id(of_op)] = [
                (i, node, _count_rows(graph, of_op, i))
                for i, node in enumerate(of_op)
                if node in nodes
            ]
        if op.operands and graph.values[op.operands[0]].flat is not None:
            yield from _ranges_costs(graph, op, nodes, known)
            continue
        split, push = _is_split(graph, op), pushes.get(op)
        repeated = has_microbatches and graph.is_repeated(op)
        key = (
            id(flops_by_rows(graph, op, known)),
            id(of_op),
            split,
            push,
            op.attrs.get("again", False),
            repeated and (1 + _differs(graph, op)),
        )
        costs = shared.get(key)
        if costs is None:
            costs = shared[key] = [
                (node, _node_cost(graph, op, own if split else None, i, push, known))
                for i, node, own in at
            ]
        for node, cost in costs:
            yield op, node, cost
    for edge in edges:
        for node, added in _sums(graph, edge, nodes):
            yield graph.receives[edge.id], node, Cost(exchange=added)


def _node_cost(
    graph: Graph,
    op: Op,
    own_rows: int | None,
    index: int,
    push: Op | None,
    known: FlopsCache,
) -> Cost:
    """Return the cost of an op on the node with an index in the op's place.

    Args:
        graph: the graph.
        op: the op.
        own_rows: the rows of the node; None if each node computes all rows.
        index: the index of the node.
        push: the message for which a server runs the op, if it runs for each message.
        known: the known FLOPs.
    """
    rows = graph.batch if own_rows is None else own_rows
    total, repeated = _step_flops(graph, op, rows, known)
    times = len(graph.nodes(push)) if push else 1
    if push and "every" in push.attrs:
        return Cost(exchange=total * times // push.attrs["every"])
    again = total * (times - 1)
    if op.kind in SCALES:
        return Cost(replicated=again, exchange=total)
    if op.attrs.get("again", False):
        repeated = total
    elif index > 0:
        repeated = (
            total if own_rows is None else repeated + _fixed_flops(graph, op, known)
        )
    # `repeated` may be negative: for a gradient that sums over rows, the parts have fewer
    # additions in sum than the whole batch.
    return Cost(total - repeated, again + max(0, repeated))


def _pushes(graph: Graph, nodes: Iterable[str]) -> dict[Op, Op]:
    """Return the sends of workers for which a server updates whole parameters."""
    # Keys are the ops that run once for each worker. Updates of rows by key do not count,
    # since each worker sends different keys.
    if all(op.exchange is None for op in graph.sends.values()):
        return {}
    return {
        op: graph.sends[edge]
        for node in nodes
        for edge, ops in served_ops(graph, node).items()
        for op in ops
        if _is_of_whole_parameters(graph.sends[edge])
    }


def _is_of_whole_parameters(send: Op) -> bool:
    """Whether a server applies the message of each worker to whole parameters."""
    exchange = send.exchange
    return (
        exchange is not None
        and exchange.handling == "applies"
        and exchange.to == "servers"
        and not exchange.is_by_key
    )


def _ranges_costs(
    graph: Graph, op: Op, chosen: Collection[str], known: FlopsCache
) -> Iterator[tuple[Op, str, Cost]]:
    """Yield the FLOPs of an op on ranges for each node, by its number of elements."""
    nodes, name = graph.nodes(op), op.operands[0]
    total = op_flops(graph, op, graph.batch, known)
    numel = graph.tensor_type(name).numel()
    for part, low, high in graph.ranges(name).owned():
        if (node := nodes[part]) in chosen:
            yield op, node, Cost(total * high // numel - total * low // numel)


def group_by_cost(graph: Graph, node_classes: NodeClasses) -> dict[str, str]:
    """Return for each node the first node with the same cost."""
    first_of: dict[str, list[int]] = {}
    # Nodes with ranges have different numbers of elements.
    in_ranges = {
        node
        for op in graph.ops
        if any(value.flat is not None for value in op.results)
        for node in graph.nodes(op)
    }
    for number, nodes in enumerate(node_tuples(graph)):
        first_of.setdefault(nodes[0], []).append(number)
    same: dict[tuple[str, tuple[int, ...]], str] = {}
    return {
        node: node
        if node in in_ranges
        else same.setdefault((first, tuple(first_of.get(node, ()))), node)
        for first, nodes in node_classes.classes.items()
        for node in nodes
    }


@dataclass(frozen=True, slots=True)
class RepeatedOp:
    """An op that several nodes compute for all rows of the batch.

    Attributes:
        op: the op.
        nodes: the number of nodes.
        flops: the declared FLOPs per step that all nodes but the first spend on the op
            and its gradient.
    """

    op: Op
    nodes: int
    flops: int


def find_repeated_ops(graph: Graph) -> list[RepeatedOp]:
    """Return the ops that several nodes compute for the whole batch, costliest first.

    Excludes repetition that the spec requests (updates at several nodes, `remat`), and ops
    that use only parameters.
    """
    known = FlopsCache()
    repeated_flops: dict[str, int] = {}
    for op in graph.ops:
        nodes = graph.nodes(op)
        if len(nodes) == 1 or not op.is_computed or is_conversion(op.kind):
            continue
        forward = graph.producers[op.operands[0]] if op.is_gradient else op
        if op.attrs.get("again", False) or op.kind in SCALES or _is_split(graph, op):
            continue
        if _has_rows(graph, forward):
            total, _ = _step_flops(graph, op, graph.batch, known)
            repeated = total * (len(nodes) - 1)
            repeated_flops[forward.name] = (
                repeated_flops.get(forward.name, 0) + repeated
            )
    ops = {op.name: op for op in graph.ops}
    repeated_ops = [
        RepeatedOp(ops[name], len(graph.nodes(ops[name])), total)
        for name, total in repeated_flops.items()
        if total
    ]
    return sorted(repeated_ops, key=lambda each: -each.flops)


def _has_rows(graph: Graph, op: Op) -> bool:
    """Whether an operand of the op has a batch dimension."""
    # The last operand of a `call` is the row positions, even if unused.
    operands = op.operands[:-1] if op.kind == "call" else op.operands
    types = (graph.values[name].type for name in operands)
    return any(isinstance(kind, TensorType) and kind.has_rows for kind in types)


def task_cost(graph: Graph, op: Op, node: str, known: FlopsCache) -> int:
    """Return the declared FLOPs of one run of an op on a node.

    A run covers the first and largest microbatch, or the whole batch if the op runs once
    a step.
    """
    return op_flops(graph, op, task_rows(graph, op, node), known)


def task_rows(graph: Graph, op: Op, node: str) -> int:
    """Return the rows of one run of an op on a node, as `task_cost` counts them."""
    rows = graph.batch
    if _is_split(graph, op):
        nodes = graph.nodes(op)
        rows = _count_rows(graph, nodes, nodes.index(node))
    if graph.is_repeated(op) and _differs(graph, op):
        low, high = part_range(rows, 0, graph.microbatches)
        rows = high - low
    return rows


def _is_split(graph: Graph, op: Op) -> bool:
    """Whether each node of the op computes different rows."""
    return len(graph.nodes(op)) > 1 and any(
        graph.values[name].layout == "S" for name in op.operands
    )


def _count_rows(graph: Graph, nodes: Sequence[str], index: int) -> int:
    """Return how many rows the node computes if each node computes its own rows."""
    share = row_shard(nodes, index, graph.cluster.workers)
    return share.num_rows(graph.batch)


def _differs(graph: Graph, op: Op) -> bool:
    """Whether an operand of the op has different rows in each microbatch."""
    return any(graph.values[name].microbatch_layout == "S" for name in op.operands)


def _step_flops(graph: Graph, op: Op, rows: int, known: FlopsCache) -> tuple[int, int]:
    """Return the FLOPs of an op in one step, and the part that repeats the first
    microbatch's work."""
    parts = graph.microbatches
    if not graph.is_repeated(op):
        return op_flops(graph, op, rows, known), 0
    if not _differs(graph, op):
        once = op_flops(graph, op, rows, known)
        return parts * once, (parts - 1) * once
    bounds = (part_range(rows, i, parts) for i in range(parts))
    total = sum(op_flops(graph, op, high - low, known) for low, high in bounds)
    return total, (parts - 1) * _fixed_flops(graph, op, known)


def _fixed_flops(graph: Graph, op: Op, known: FlopsCache) -> int:
    """Return the part of an op's FLOPs that is independent of the number of rows."""
    # Every node with rows of the op computes this part. FLOPs are linear in rows,
    # a + b * rows, so a is 2 * (a + b) - (a + 2 * b).
    return 2 * op_flops(graph, op, 1, known) - op_flops(graph, op, 2, known)


def _sums(graph: Graph, edge: Edge, nodes: Container[str]) -> Iterator[tuple[str, int]]:
    """Yield the FLOPs of summing the partial values of an edge at its targets."""
    if edge.exchange is not None:
        return  # the server applies each part without summing first
    repeated = graph.is_repeated(graph.sends[edge.id])
    times = graph.microbatches if repeated else 1
    batch = graph.batch // times
    targets = [target for target in edge.targets if target in nodes]
    added: dict[tuple[Layout, Layout], list[tuple[int, int]]] = {}
    for value in edge.values:
        if value.layouts[0] != "P":
            continue
        if value.flat is not None:
            for part, low, high in edge.ranges(value).owned():
                if (target := edge.targets[part]) in nodes:
                    yield target, (len(edge.sources) - 1) * (high - low)
            continue
        if value.layouts not in added:
            places = value.layouts, edge.sources, edge.targets
            conversion = Conversion(*places, batch, graph.cluster.workers)
            added[value.layouts] = [
                _count_added(conversion.pieces_for(target)) for target in targets
            ]
        numel = TensorType(value.dtype, value.shape).numel(batch)
        for target, (wholes, rows) in zip(targets, added[value.layouts], strict=True):
            yield target, times * (wholes * numel + numel // batch * rows)


def _count_added(pieces: Sequence[Piece]) -> tuple[int, int]:
    """Return how many whole values and how many rows are added to others."""
    # The first piece of each range is stored; the other pieces are added to it.
    first = {piece.target_offset: piece for piece in reversed(pieces)}
    added = [piece for piece in pieces if piece is not first[piece.target_offset]]
    rows = [piece.high - piece.low for piece in added if not piece.is_whole]
    return len(added) - len(rows), sum(rows)
