"""Values with a row for each key of a batch: their keys, sizes and layouts."""

from __future__ import annotations

from collections.abc import Sequence, Set

from msgspec.structs import replace

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.layout_rules import LayoutSignature
from placer.compiler.graph.structural_ops import CLIP_PART
from placer.compiler.graph.structural_types import DISTINCT_KEYS, EXACT_SUM, count_ids
from placer.place.layouts import Layout
from placer.place.types import ITEM_BYTES, TensorType
from placer.plan.exchanges import EXCHANGES

OCCURRENCE_BYTES = 4
"""Bytes of the count that is sent with each key: how often it occurs."""


def is_keyed(graph: Graph, name: str) -> bool:
    """Return True if a value has a row for each key."""
    kind = graph.values[name].type
    return isinstance(kind, TensorType) and kind.is_keyed


def keys_of(graph: Graph, name: str) -> Op:
    """Return the op that collects some keys, or the keys of a value's rows. For a sum by key,
    these are the keys of its first term."""
    if graph.values[name].type != DISTINCT_KEYS:
        name = _lookup_of(graph, name).operands[1]
    while (op := graph.producers[name]).kind != "distinct_keys":
        index = graph.result_indices[name]
        if op.received_edge is not None:
            name = graph.sends[op.received_edge].operands[index]
        else:
            name = op.operands[index if op.structure.copies else 0]
    return op


def tables_of(graph: Graph, name: str) -> tuple[str, ...]:
    """Return the sparse table of a value's rows, or the tables that some keys select rows of."""
    if graph.values[name].type == DISTINCT_KEYS:
        tables: tuple[str, ...] = keys_of(graph, name).attrs["tables"]
        return tables
    return _lookup_of(graph, name).operands[:1]


def _lookup_of(graph: Graph, name: str) -> Op:
    """Return the op that looks up the rows of a value, or that its gradients are of."""
    while (op := graph.producers[name]).kind != "distributed_lookup_table":
        index = graph.result_indices[name]
        if op.received_edge is not None:
            name = graph.sends[op.received_edge].operands[index]
        elif op.kind == "sum_by_key":
            name = op.operands[1 + index]
        elif op.kind == "accumulate":
            name = op.attrs["of"]
        elif op.is_gradient:
            name = graph.producers[op.operands[0]].operands[-1]
        elif op.structure.update is not None:
            name = op.operands[1]
        else:
            several = op.structure.copies or op.kind == CLIP_PART
            name = op.operands[index if several else 0]
    return op


def without_unused_tables(graph: Graph) -> Graph:
    """Return the graph, in which ops collect keys only for tables that the graph looks up, and
    read only their inputs."""
    used: dict[Op, set[str]] = {}
    for op in graph.of_kind("distributed_lookup_table"):
        table, keys = op.operands
        used.setdefault(keys_of(graph, keys), set()).add(table)
    ops = [_only_for(op, used[op]) if op in used else op for op in graph.ops]
    operands = {name for op in ops for name in op.operands}
    return graph.with_ops(
        op for op in ops if op.name in operands or not op.structure.anywhere
    )


def _only_for(op: Op, tables: Set[str]) -> Op:
    """Return an op that collects keys for some of its tables only."""
    count = count_ids(op)
    ids, read = op.operands[:count], iter(op.operands[count:])
    attrs = dict(op.attrs)
    attrs["tables"] = tuple(table for table in attrs["tables"] if table in tables)
    given = {
        table: [(name, next(read)) for name in names]
        for table, names in attrs.pop("inputs", {}).items()
    }
    kept = {table: each for table, each in given.items() if table in tables}
    if kept:
        attrs["inputs"] = {t: tuple(n for n, _ in each) for t, each in kept.items()}
    values = (value for each in kept.values() for _, value in each)
    return replace(op, operands=(*ids, *values), attrs=attrs)


def sum_by_key_of(graph: Graph, update: Op) -> Op:
    """Return the op that sums the gradients of an update of rows, for all tables over its keys."""
    op = graph.producers[update.operands[1]]
    while op.kind != "sum_by_key":
        op = graph.producers[op.operands[0]]  # a sum over microbatches
    return op


def count_keys(graph: Graph, name: str, rows: int) -> int:
    """Return the largest number of keys of a value, for `rows` rows of a batch."""
    ids = keys_of(graph, name).results[1:]
    return sum(graph.tensor_type(each.name).numel(rows) for each in ids)


def row_bytes(kind: TensorType) -> int:
    """Return the bytes of one row of a keyed value in a message."""
    if kind == DISTINCT_KEYS:
        return ITEM_BYTES[kind.dtype] + OCCURRENCE_BYTES
    return TensorType(kind.dtype, kind.shape[1:]).nbytes()


def keyed_signature(
    graph: Graph, op: Op, have: Sequence[Layout]
) -> LayoutSignature | None:
    """Return the layouts of operands and results of a structural op on keyed rows.

    Returns None for any other op. Each of several storage nodes holds the rows of its
    own keys: layout S. A node that looks up rows has a replica (R) of the table with
    only its own keys, so its gradient is a part of a sum (P).
    """
    names = (*op.operands, *(value.name for value in op.results))
    if op.is_computed or not any(is_keyed(graph, name) for name in names):
        return None
    several = len(graph.nodes(op)) > 1
    own: Layout = "S" if several else "R"
    if op.structure.moves:
        exchange = EXCHANGES[op.kind]
        return tuple(have), ("R" if exchange.moves == "rows" else own,)
    if op.structure.copies:
        return None
    part: Layout = "P" if several else "R"
    is_own = op.structure.layout == "own"
    return (
        tuple(own if is_own or is_keyed(graph, n) else "R" for n in op.operands),
        tuple(
            part if v.type in (DISTINCT_KEYS, EXACT_SUM) else own for v in op.results
        ),
    )


def ahead_of(graph: Graph, push: Op) -> list[int]:
    """Return the edges of keys that a node can send one step ahead of a push of
    gradients. These are keys of inputs: no other value has to be computed first."""
    if graph.microbatches > 1:
        return []
    asked = {
        name: edge
        for edge, send in graph.sends.items()
        if send.exchange and send.exchange.moves == "keys"
        for name in send.operands
    }
    edges: dict[int, None] = {}
    for name in push.operands:
        collect = keys_of(graph, name)
        edge = asked.get(collect.results[0].name)
        if edge is not None:
            edges[edge] = None
    return [edge for edge in edges if is_of_inputs(graph, graph.sends[edge])]


def is_of_inputs(graph: Graph, ask: Op) -> bool:
    """Return True if all keys in the message are inputs."""
    return all(
        graph.producers[each].structure.anywhere
        for name in ask.operands
        for each in graph.producers[name].operands
    )
