"""The messages of a lowered step: their bytes from each source to each target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.keyed import count_keys, is_keyed, row_bytes
from placer.place.layouts.moved_pieces import Conversion
from placer.place.types import ITEM_BYTES, TensorType


class Message(NamedTuple):
    """What one source sends to one target.

    Attributes:
        parts: the number of frames; more than one in a ring.
        nbytes: the bytes of all parts.
    """

    source: str
    target: str
    nbytes: int
    parts: int = 1


def messages_of(graph: Graph, edge: int) -> tuple[Message, ...]:
    """Return the messages of an edge in one step, or in one microbatch.

    A node that keeps its own part sends itself no message. Keys of a batch count as all
    distinct, and as spread evenly over the nodes that store them.

    Args:
        graph: the graph after the last pass.
        edge: the number of the edge.
    """
    send, receive = graph.sends[edge], graph.receives[edge]
    sources, targets = graph.nodes(send), graph.nodes(receive)
    if send.attrs.get("ring", False):
        return _ring(graph, send, sources)
    sizes: dict[tuple[str, str], int] = {}
    for operand, value in zip(send.operands, receive.results, strict=True):
        result = value.name
        if is_keyed(graph, operand):
            _add_keyed(sizes, graph, send, operand, sources, targets)
        elif value.flat is not None or graph.values[operand].flat is not None:
            _add_ranges(sizes, graph, send, operand, result, sources, targets)
        else:
            _add_rows(sizes, graph, send, operand, result, sources, targets)
    return tuple(
        Message(source, target, nbytes)
        for (source, target), nbytes in sizes.items()
        if source != target
    )


def rows_of_message(graph: Graph, send: Op) -> int:
    """Return the rows of the batch or microbatch that pass through a message."""
    return graph.batch // (graph.microbatches if graph.is_repeated(send) else 1)


def _kind(graph: Graph, send: Op, name: str) -> TensorType:
    """Return the type of a value in a message, which may have a dtype of its own."""
    kind = graph.tensor_type(name)
    return TensorType(send.attrs.get("dtype", kind.dtype), kind.shape)


def _ring(graph: Graph, send: Op, nodes: Sequence[str]) -> tuple[Message, ...]:
    """Return the messages of a ring: each node sends all parts but one to the next."""
    total = sum(_kind(graph, send, name).nbytes() for name in send.operands)
    count = len(nodes)
    return tuple(
        Message(node, nodes[(i + 1) % count], total * (count - 1) // count, count - 1)
        for i, node in enumerate(nodes)
    )


_Sizes = dict[tuple[str, str], int]


def _add_keyed(
    sizes: _Sizes,
    graph: Graph,
    send: Op,
    name: str,
    sources: Sequence[str],
    targets: Sequence[str],
) -> None:
    keys = count_keys(graph, name, rows_of_message(graph, send))
    total = keys * row_bytes(graph.tensor_type(name))
    for source in sources:
        for target in targets:
            share = total // (len(sources) * len(targets))
            sizes[source, target] = sizes.get((source, target), 0) + share


def _add_ranges(
    sizes: _Sizes,
    graph: Graph,
    send: Op,
    operand: str,
    result: str,
    sources: Sequence[str],
    targets: Sequence[str],
) -> None:
    kind = _kind(graph, send, operand)
    if graph.values[operand].flat is not None:  # ranges are joined at each target
        for part, low, high in graph.ranges(operand).owned():
            nbytes = (high - low) * ITEM_BYTES[kind.dtype]
            for target in targets:
                pair = sources[part], target
                sizes[pair] = sizes.get(pair, 0) + nbytes
        return
    for part, low, high in graph.ranges(result).owned():  # sums in ranges
        nbytes = (high - low) * ITEM_BYTES[kind.dtype]
        for source in sources:
            pair = source, targets[part]
            sizes[pair] = sizes.get(pair, 0) + nbytes


def _add_rows(
    sizes: _Sizes,
    graph: Graph,
    send: Op,
    operand: str,
    result: str,
    sources: Sequence[str],
    targets: Sequence[str],
) -> None:
    kind, rows = _kind(graph, send, operand), rows_of_message(graph, send)
    layouts = graph.layout(operand), graph.layout(result)
    whole = kind.nbytes(rows)
    of_row = whole // rows if kind.has_rows else whole
    # A worker sends the difference of its own values to each target.
    exchange = send.exchange
    if exchange is not None and exchange.moves == "differences":
        for pair in ((s, t) for s in sources for t in targets):
            sizes[pair] = sizes.get(pair, 0) + whole
        return
    conversion = Conversion(layouts, sources, targets, rows, graph.cluster.workers)
    for target in targets:
        for piece in conversion.pieces_for(target):
            pair = piece.source, target
            nbytes = whole if piece.is_whole else of_row * (piece.high - piece.low)
            sizes[pair] = sizes.get(pair, 0) + nbytes
