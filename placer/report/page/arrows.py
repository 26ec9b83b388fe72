"""Divides the bytes of each edge over the groups of nodes that send and receive them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from placer.compiler.graph.graph import Graph
from placer.compiler.graph.keyed import row_bytes
from placer.compiler.schedule.node_classes import NodeClasses
from placer.place.layouts import Layout
from placer.place.layouts.moved_pieces import Conversion
from placer.place.layouts.partition import row_shard
from placer.place.node_kinds import NodeId
from placer.place.types import ITEM_BYTES, TensorType
from placer.plan.plan import Edge, Plan

Pair = tuple[int, int]
"""The groups of the senders and of the receivers."""


def divide_edge(
    graph: Graph,
    plan: Plan,
    edge: Edge,
    group_of: Mapping[NodeId, int],
    node_classes: NodeClasses,
) -> dict[Pair, int]:
    """Return the bytes of an edge between each two groups, which add up to its bytes.

    A pair of groups without a message is left out. An edge has no message at all if its
    values are zeros at all receivers. Messages between threads of a process
    have no bytes.
    """
    weights = weigh_edge(graph, plan, edge, group_of, node_classes)
    return share(edge.nbytes, weights)


def weigh_edge(
    graph: Graph,
    plan: Plan,
    edge: Edge,
    group_of: Mapping[NodeId, int],
    node_classes: NodeClasses,
) -> dict[Pair, int]:
    """Return the bytes of one exchange on an edge between each two groups.

    For keys, rows and changes of workers, only the proportions are exact.
    """
    groups = {node: group_of[NodeId(node)] for node in (*edge.sources, *edge.targets)}
    if edge.ring:
        return _ring(edge, groups)
    if edge.is_flat:
        return _ranges(edge, groups)
    if edge.is_by_key:
        return _keys(graph, plan, edge, groups)
    if edge.is_push and all(value.layouts == ("R", "R") for value in edge.values):
        return _changes(edge, groups)
    return _pieces(graph, edge, groups, node_classes)


def share(total: int, weights: Mapping[Pair, int]) -> dict[Pair, int]:
    """Divide a total in proportion to weights. The parts add up to the total.

    >>> share(7, {(0, 0): 1, (0, 1): 1})
    {(0, 0): 3, (0, 1): 4}
    """
    weight_sum = sum(weights.values())
    assert weights or not total, "bytes of an edge without messages"
    if not weight_sum:
        equal = dict.fromkeys(weights, 1)
        return share(total, equal) if total else dict.fromkeys(weights, 0)
    parts, before = {}, 0
    for pair, weight in weights.items():
        until = before + weight
        parts[pair] = total * until // weight_sum - total * before // weight_sum
        before = until
    return parts


def _changes(edge: Edge, groups: Mapping[str, int]) -> dict[Pair, int]:
    """Return the number of messages between groups. Each worker sends its own change."""
    counts: dict[Pair, int] = defaultdict(int)
    for source in edge.sources:
        for target in edge.targets:
            is_sent = NodeId(source).process != NodeId(target).process
            counts[groups[source], groups[target]] += is_sent
    return counts


def _pieces(
    graph: Graph, edge: Edge, groups: Mapping[str, int], node_classes: NodeClasses
) -> dict[Pair, int]:
    """Return the bytes of whole values and rows between groups, for a message."""
    repeated = graph.is_repeated(graph.receives[edge.id])
    batch = graph.batch // (graph.microbatches if repeated else 1)
    workers, classes = graph.cluster.workers, node_classes.classes
    counted: dict[tuple[Layout, Layout], dict[Pair, tuple[int, int]]] = {}
    for value in edge.values:
        if value.layouts in counted:
            continue
        conversion = Conversion(
            value.layouts, edge.sources, edge.targets, batch, workers
        )
        found: dict[Pair, tuple[int, int]] = {}
        for target in filter(classes.__contains__, edge.targets):
            for piece in conversion.pieces_for(target):
                if piece.source == target:
                    continue
                pair = groups[piece.source], groups[target]
                wholes, rows = found.get(pair, (0, 0))
                if NodeId(piece.source).process != NodeId(target).process:
                    wholes += len(classes[target]) * piece.is_whole
                    rows += len(classes[target]) * (piece.high - piece.low)
                found[pair] = wholes, rows
        counted[value.layouts] = found
    nbytes: dict[Pair, int] = defaultdict(int)
    for value in edge.values:
        kind = TensorType(value.dtype, value.shape)
        whole = kind.nbytes(batch)
        of_row = whole // batch if kind.has_rows else whole
        for pair, (wholes, rows) in counted[value.layouts].items():
            nbytes[pair] += wholes * whole + rows * of_row
    return nbytes


def _ranges(edge: Edge, groups: Mapping[str, int]) -> dict[Pair, int]:
    """Return the bytes of ranges between groups."""
    nbytes: dict[Pair, int] = defaultdict(int)
    members: dict[int, int] = defaultdict(int)
    for value in edge.values:
        scatters = value.layouts[1] == "F"
        owners, others = edge.sources, edge.targets
        if scatters:
            owners, others = others, owners
        if not members:
            for node in others:
                members[groups[node]] += 1
            own = set(others)
        item = ITEM_BYTES[value.dtype]
        for part, low, high in edge.ranges(value).owned():
            owner = owners[part]
            for group, count in members.items():
                receivers = count - (owner in own and groups[owner] == group)
                if receivers:
                    pair = groups[owner], group
                    pair = pair[::-1] if scatters else pair
                    nbytes[pair] += receivers * (high - low) * item
    return nbytes


def _ring(edge: Edge, groups: Mapping[str, int]) -> dict[Pair, int]:
    """Return the bytes from each node of a ring to the next, between groups.

    A sum starts at the node after its last node, and a range starts at its owner. Each
    node therefore sends all ranges except one.
    """
    nodes = edge.sources
    nbytes: dict[Pair, int] = defaultdict(int)
    for value in edge.values:
        item, skipped = ITEM_BYTES[value.dtype], [0] * len(nodes)
        if value.flat is not None:
            # A node does not send the sum that ends there, nor its next node's own range.
            ahead = value.layouts[1] != "F"
            for part, low, high in edge.ranges(value).owned():
                skipped[part - ahead] = high - low
        for i, node in enumerate(nodes):
            pair = groups[node], groups[nodes[(i + 1) % len(nodes)]]
            nbytes[pair] += (value.size - skipped[i]) * item
    return nbytes


def _keys(
    graph: Graph, plan: Plan, edge: Edge, groups: Mapping[str, int]
) -> dict[Pair, int]:
    """Return how many keys of a batch go between groups, up to a common factor, if all
    keys are different."""
    exchange = edge.declared
    assert exchange is not None
    holders, askers = edge.targets, edge.sources
    answers = exchange.to == "workers"
    if answers:
        holders, askers = askers, holders
    tables = {table.name: table for table in plan.sparse_tables}
    weights: dict[Pair, int] = defaultdict(int)
    rows: dict[int, int] = defaultdict(int)
    own: dict[str, int] = {}
    workers = graph.cluster.workers
    for i, asker in enumerate(askers):
        own[asker] = row_shard(askers, i, workers).num_rows(graph.batch)
        rows[groups[asker]] += own[asker]
    for value in edge.values:
        table = tables[value.tables[0]]
        item = row_bytes(graph.tensor_type(value.operand)) * (1 << 20)
        for holder in holders:
            share_of_holder = (
                item * len(table.partitions_of(holder)) // table.settings.partitions
            )
            for group, count in rows.items():
                if group == groups[holder]:
                    count -= own.get(holder, 0)
                if count:
                    pair = group, groups[holder]
                    weights[pair[::-1] if answers else pair] += share_of_holder * count
    return weights
