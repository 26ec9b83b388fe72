"""transfer: replace conversions between nodes by send and listen_and_serv.

Needs a laid-out graph. Afterwards values cross nodes only as messages, from host memory to
host memory. A message is an edge: all values that go from one place to another at the same
level travel together. `placer.compiler.graph.levels` defines levels.

The order of ops prevents deadlocks. Ops are sorted by level; within a level, a node first
receives, then computes, then sends. A message sent at level n is received at level n + 1,
and depends only on messages received at levels up to n. Once every node has finished the
levels before n, all messages that level n receives are sent, so every node can finish level
n. By induction, nodes never wait for each other in a cycle, even though each node runs its
ops strictly in this order.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from placer.compiler.graph.graph import Graph, Op, Value
from placer.compiler.graph.levels import (
    LevelItem,
    awaited_by,
    compute_levels,
    level_group,
    sent_buckets,
)
from placer.compiler.graph.structural_ops import is_conversion
from placer.place import Place
from placer.place.layouts.moved_pieces import is_local
from placer.place.types import TensorType


def transfer(graph: Graph) -> Graph:
    """Run the pass."""
    items = _lower_conversions(graph)
    levels = compute_levels([_level_item(item) for item in items])
    return _merge_messages(graph, items, levels)


@dataclass(frozen=True, slots=True)
class _Transfer:
    """A value that moves from one place to another.

    Attributes:
        operand: the value at the origin, with its layout.
        result: the value at the target, with its layout.
        origin: the place that sends.
        target: the place that receives.
        conversion: the replaced op: a conversion, `pull`, `push` or `push_delta`.
    """

    operand: Value
    result: Value
    origin: Place
    target: Place
    conversion: Op


def _lower_conversions(graph: Graph) -> list[Op | _Transfer]:
    """Replace conversions by transfers, unless they stay within nodes."""
    items: list[Op | _Transfer] = []
    local: dict[tuple[object, ...], bool] = {}  # by layouts and the ids of places
    for op in graph.ops:
        if op.structure.moves:
            items.extend(_transfers(graph, op))
            continue
        if is_conversion(op.kind):
            (name,) = op.operands
            source = graph.producers[name]
            layouts = graph.layout(name), graph.layout(op.name)
            if "F" in layouts:
                items.extend(_transfers(graph, op))
                continue
            key = layouts, id(source.place), id(op.place)
            if key not in local:
                nodes = graph.nodes(source), graph.nodes(op)
                local[key] = is_local(layouts, *nodes, graph.cluster.workers)
            if not local[key]:
                items.extend(_transfers(graph, op))
                continue
        items.append(op)
    return items


def _transfers(graph: Graph, op: Op) -> Sequence[_Transfer]:
    """Return the transfers of a conversion: one, or two for an all_reduce."""
    # The first node computes a sum for several nodes and sends it to the others, so
    # that additions are done once and all nodes have the same bits.
    operand, result = graph.values[op.operands[0]], op.result
    source = graph.producers[operand.name]
    origin, target = (
        graph.cluster.host_memory(each.known_place) for each in (source, op)
    )
    several = len(graph.nodes(op)) > 1
    is_sum = (operand.layout, result.layout) == ("P", "R")
    if not is_sum or not several or op.structure.moves:
        return (_Transfer(operand, result, origin, target, op),)
    first = graph.cluster.first_node(target)
    total = Value(f"{result.name}.sum", result.type, "R", result.microbatch_layout)
    return (
        _Transfer(operand, total, origin, first, op),
        _Transfer(total, result, first, target, op),
    )


def _level_item(item: Op | _Transfer) -> LevelItem:
    if isinstance(item, _Transfer):
        # A table applies a node's push from one message, and a bucket is one message.
        attrs = item.conversion.attrs
        exchange = item.conversion.exchange
        is_asynchronous = item.conversion.is_asynchronous
        is_whole = "bucket" in attrs or (
            exchange is not None
            and is_asynchronous
            and (exchange.is_push or exchange.is_by_key)
        )
        group = (item.origin, item.target, _exchange_of(item)) if is_whole else None
        defines = item.result.name, *sent_buckets(item.conversion.attrs)
        return LevelItem((item.operand.name,), defines, 1, group)
    results = [value.name for value in item.results]
    return LevelItem(awaited_by(item), results, item.structure.delay, level_group(item))


def _merge_messages(
    graph: Graph, items: Sequence[Op | _Transfer], levels: Sequence[int]
) -> Graph:
    """Merge transfers between the same places at the same level into messages, and sort
    all ops by level."""
    # Keyed by the properties that the transfers of a message share; the first fields are
    # the sort order of edges.
    edges: dict[tuple[bool, int, bool, Place, Place, Hashable], list[_Transfer]] = {}
    # Sort key: `once` ops first, level, then 0 to receive, 1 to compute, 2 to send.
    timed: list[tuple[bool, int, int, Op]] = []
    for item, level in zip(items, levels, strict=True):
        if isinstance(item, _Transfer):
            repeated = item.operand.microbatch_layout is not None
            start = not item.conversion.is_once, level, repeated
            key = *start, item.origin, item.target, _exchange_of(item)
            edges.setdefault(key, []).append(item)
        else:
            timed.append((not item.is_once, level, 1, item))
    order = sorted(edges, key=lambda key: key[:2])
    for number, key in enumerate(order, graph.first_edge):
        per_batch, level, *_ = key
        send, listen = _messages(number, edges[key])
        timed.append((per_batch, level, 2, send))
        timed.append((per_batch, level + 1, 0, listen))
    timed.sort(key=lambda entry: entry[:3])
    return graph.with_ops(op for *_, op in timed)


def _exchange_of(item: _Transfer) -> Hashable:
    """Return the key that transfers in one message share, or None if any may join."""
    # A message with ranges or asynchronous values belongs to one group and dtype, so
    # that a single table uses all of it. Rows by key are of several tables. A message of
    # gradients belongs to one bucket.
    is_flat = "F" in (item.operand.layout, item.result.layout)
    if not is_flat and not item.conversion.structure.moves:
        return item.conversion.attrs.get("bucket")
    kind = item.result.type
    assert isinstance(kind, TensorType)
    attrs, exchange = item.conversion.attrs, item.conversion.exchange
    return (
        item.conversion.kind,
        attrs.get("group"),
        "" if exchange is not None and exchange.is_by_key else kind.dtype,
        attrs.get("ring", False),
    )


def _messages(number: int, transfers: Sequence[_Transfer]) -> tuple[Op, Op]:
    """Return the send and the receive of an edge."""
    first = transfers[0]
    keys = ("once", "ring")
    marks: dict[str, Any] = {
        key: True for key in keys if first.conversion.attrs.get(key)
    }
    source = first.conversion.source
    if "bucket" in first.conversion.attrs:
        marks["bucket"] = first.conversion.attrs["bucket"]
    if (exchange := first.conversion.exchange) is not None:
        marks["exchange"] = exchange.name
        kept = ("group", *exchange.settings)
        attrs = first.conversion.attrs
        marks |= {key: attrs[key] for key in kept if key in attrs}
    sent = tuple(each.operand.name for each in transfers)
    attrs = {"edge": number, "to": first.target, **marks}
    why = first.conversion.why
    send = Op("send", sent, (), attrs, first.origin, source, why)
    received = tuple(each.result for each in transfers)
    attrs = {"edge": number, "from": first.origin, **marks}
    return send, Op("listen_and_serv", (), received, attrs, first.target, source)
