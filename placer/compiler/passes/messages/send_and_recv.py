"""send_and_recv: merge a worker's request to a heter node with the wait for the reply.

Needs segments. Heter nodes run blocks of ops for workers. If a worker does nothing between
request and reply, one `send_and_recv` op replaces both, at the position of the block in the
worker's program.
"""

from __future__ import annotations

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.structural_kind import LevelPhase
from placer.place import HETER, WORKER


def send_and_recv(graph: Graph) -> Graph:
    """Run the pass.

    Ops between a request and its reply move before the request. Graphs with microbatches
    stay unchanged, since a worker can process other microbatches while it waits. Messages
    of a sparse table on a heter node stay separate.
    """
    if graph.microbatches > 1:
        return graph
    pairs = _pairs(graph)
    moved = {i for to_reply in pairs.values() for i in to_reply}
    ops: list[Op] = []
    for i, op in enumerate(graph.ops):
        if i in pairs:
            *between, reply = (graph.ops[j] for j in pairs[i])
            ops += [*between, _merge(op, reply)]
        elif i not in moved:
            ops.append(op)
    return graph.with_ops(ops)


def _pairs(graph: Graph) -> dict[int, list[int]]:
    """Return the positions of the ops from each request to its reply, by request."""
    pairs: dict[int, list[int]] = {}
    claimed: set[int] = set()
    for i, op in enumerate(graph.ops):
        if op.kind != "send" or op.attrs["to"].node != HETER:
            continue
        if op.known_place.node != WORKER or _is_by_key(op):
            continue
        to_reply = _find_reply(graph, i, op)
        # An op can move for one pair only.
        if to_reply is not None and claimed.isdisjoint(to_reply):
            claimed.update(to_reply)
            pairs[i] = to_reply
    return pairs


def _find_reply(graph: Graph, position: int, send: Op) -> list[int] | None:
    """Return the positions up to the reply of a request."""
    # The result is None if the senders wait for another message before the reply.
    workers = set(graph.nodes(send))
    between: list[int] = []
    for i in range(position + 1, len(graph.ops)):
        op = graph.ops[i]
        if workers.isdisjoint(graph.nodes(op)):
            continue
        if op.is_once != send.is_once:
            return None  # in an evaluation, only one of the two runs for every batch
        if _runs_last(op):
            between.append(i)
            continue
        is_reply = (
            op.kind == "listen_and_serv"
            and not _is_by_key(op)
            and (op.place, op.attrs["from"]) == (send.place, send.attrs["to"])
            and _depends_on(graph, op.attrs["edge"], send.attrs["edge"])
        )
        return [*between, i] if is_reply else None
    return None


def _is_by_key(op: Op) -> bool:
    return op.exchange is not None and op.exchange.is_by_key


def _runs_last(op: Op) -> bool:
    """Whether an op can also run before the request, since it only uses results of its
    level."""
    return op.structure.phase >= LevelPhase.EXIT and op.structure.update is None


def _depends_on(graph: Graph, edge: int, request: int) -> bool:
    """Whether an edge's values depend on the values of `request`, on the nodes that receive
    the request."""
    pending = list(graph.sends[edge].operands)
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        op = graph.producers[name]
        if op.kind == "listen_and_serv":
            if op.attrs["edge"] == request:
                return True
        else:
            pending += op.operands
    return False


def _merge(send: Op, listen: Op) -> Op:
    attrs = {**send.attrs, "back": listen.attrs["edge"]}
    place, source = send.place, send.source
    return Op("send_and_recv", send.operands, listen.results, attrs, place, source)
