"""Finds the tables that apply gradients in chunks, as messages arrive."""

from __future__ import annotations

from collections.abc import Sequence

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.structural_ops import is_update
from placer.plan.plan import Table
from placer.plan.settings.training import optimizers


def find_streamed_updates(
    graph: Graph, node: str, tables: Sequence[Table]
) -> dict[str, tuple[Op, ...]]:
    """Return the tables with streamed updates, and the receive ops of their gradients.

    A streamed update sums and applies the parts of the senders as they arrive, without
    storing whole gradients. It requires:

    - The messages bring only these gradients, all of one step.
    - Only the update uses the gradients, without a scale.
    - The rule has one phase, and is not an optax optimizer.
    """
    listen_of = {
        value.name: op
        for op in graph.ops_on(node)
        if op.received_edge is not None and op.sent_edge is None
        for value in op.results
    }
    streamed: dict[str, tuple[Op, ...]] = {}
    for table in tables:
        names = {b.gradient for b in table.blocks if b.gradient in listen_of}
        listens = {listen_of[name].attrs["edge"]: listen_of[name] for name in names}
        received = {v.name for op in listens.values() for v in op.results}
        if (
            len(names) == len(table.blocks)
            and names == received
            and table.rule not in (None, optimizers.OPTAX)
            and not optimizers.is_two_phase(str(table.rule))
            and all(_has_one_update(graph, node, name) for name in received)
            and all(_has_all_parts(graph, node, graph.sends[edge]) for edge in listens)
        ):
            streamed[table.name] = tuple(listens[edge] for edge in sorted(listens))
    return streamed


def _has_one_update(graph: Graph, node: str, gradient: str) -> bool:
    """Whether the gradient's only use on the node is an update without a scale."""
    users = [op for op in graph.uses.get(gradient, ()) if node in graph.nodes(op)]
    return len(users) == 1 and is_update(users[0].kind) and len(users[0].operands) == 2


def _has_all_parts(graph: Graph, node: str, send: Op) -> bool:
    """Whether the parts of each gradient can be applied as they arrive."""
    # One of three conditions must hold: every sender has a part of every value, and the
    # node is not a sender; values are ranges in order, which the node also takes from
    # itself; or values are sums of received gradients.
    if send.is_push and send.exchange is not None and send.exchange.updates_workers:
        return True
    listen = graph.receives[send.attrs["edge"]]
    values = [*map(graph.values.__getitem__, send.operands), *listen.results]
    if any(value.flat is not None for value in values):
        return not send.attrs.get("ring", False)
    if "first" in send.attrs:
        return False  # the fastest workers are not known in advance
    sources = graph.nodes(send)
    layouts = {graph.values[name].layout for name in send.operands}
    return node not in sources and (len(sources) == 1 or layouts == {"P"})
