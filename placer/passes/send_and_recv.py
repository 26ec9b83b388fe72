"""What workers send to heter nodes, and wait for, is written as one op (seed 001).

A heter node runs blocks of ops for the workers. Where a worker does nothing between the
message that triggers a block and the one that comes back of it, both are one
`send_and_recv`, in the place of the block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from placer.graph.graph import Graph, Op
from placer.graph.kinds import is_once
from placer.place import HETER, WORKER

_MEANWHILE = frozenset({"send", "record", "cut", "store"})
"""What a worker may do in between without waiting for anything."""


def send_and_recv(graph: Graph) -> Graph:
    """The same graph, in which triggers and answers that belong together are one op.

    What a worker sends elsewhere in between goes before. With microbatches a worker has
    others to go on with, so that nothing is one op.
    """
    if graph.microbatches > 1:
        return graph
    pairs = {pair.sends: pair for pair in _pairs(graph)}
    gone = {i for pair in pairs.values() for i in (pair.receives, *pair.between)}
    ops: list[Op] = []
    for i, op in enumerate(graph.ops):
        if i in pairs:
            ops += (graph.ops[j] for j in pairs[i].between)
            ops.append(_joined(op, graph.ops[pairs[i].receives]))
        elif i not in gone:
            ops.append(op)
    return graph.with_ops(ops) if pairs else graph


@dataclass(frozen=True, slots=True)
class _Pair:
    """Where in the graph the two ops stand, and what the workers do in between."""

    sends: int
    receives: int
    between: tuple[int, ...]


def _pairs(graph: Graph) -> Iterator[_Pair]:
    taken: set[int] = set()
    for i, op in enumerate(graph.ops):
        if op.kind != "send" or op.attrs["to"].node != HETER:
            continue
        assert op.place is not None
        if op.place.node != WORKER:
            continue
        pair = _pair(graph, i, op)
        # What one pair moves, another may not.
        if pair is not None and taken.isdisjoint((pair.receives, *pair.between)):
            taken.update((pair.sends, pair.receives, *pair.between))
            yield pair


def _pair(graph: Graph, at: int, send: Op) -> _Pair | None:
    """The answer to a message, where all that send it wait for it next."""
    workers = set(graph.nodes(send))
    between: list[int] = []
    for i in range(at + 1, len(graph.ops)):
        op = graph.ops[i]
        if workers.isdisjoint(graph.nodes(op)):
            continue
        if is_once(op) != is_once(send):
            return None  # one of them runs for every batch of an evaluation
        if op.kind in _MEANWHILE:
            between.append(i)
            continue
        answers = (
            op.kind == "listen_and_serv"
            and (op.place, op.attrs["from"]) == (send.place, send.attrs["to"])
            and _is_answer(graph, op.attrs["edge"], send.attrs["edge"])
        )
        return _Pair(at, i, tuple(between)) if answers else None
    return None


def _is_answer(graph: Graph, edge: int, trigger: int) -> bool:
    """Whether what an edge carries was made of what another does, on the other side."""
    ahead = list(graph.sends[edge].operands)
    seen: set[str] = set()
    while ahead:
        name = ahead.pop()
        if name in seen:
            continue
        seen.add(name)
        op = graph.producers[name]
        if op.kind == "listen_and_serv":
            if op.attrs["edge"] == trigger:
                return True
        else:
            ahead += op.operands
    return False


def _joined(send: Op, listen: Op) -> Op:
    attrs = {**send.attrs, "back": listen.attrs["edge"]}
    place, source = send.place, send.source
    return Op("send_and_recv", send.operands, listen.results, attrs, place, source)
