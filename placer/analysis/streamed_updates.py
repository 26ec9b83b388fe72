"""Which tables apply gradients as they come in, from where they lie."""

from __future__ import annotations

from collections.abc import Sequence

from placer.build.plan import Table
from placer.config import optimizers
from placer.graph.graph import Graph, Op
from placer.graph.kinds import is_update


def applied(
    graph: Graph, node: str, tables: Sequence[Table]
) -> dict[str, tuple[Op, ...]]:
    """For each such table of the node, the messages that bring all its gradients.

    Nothing else takes what they bring, and nothing scales it: then no gradient is ever
    put together, and the sum over the workers is made as it is applied.
    """
    brings = {
        value.name: op
        for op in graph.on(node)
        if op.kind == "listen_and_serv"
        for value in op.results
    }
    found: dict[str, tuple[Op, ...]] = {}
    for table in tables:
        names = {block.gradient for block in table.blocks if block.gradient in brings}
        messages = {brings[name].attrs["edge"]: brings[name] for name in names}
        brought = {v.name for op in messages.values() for v in op.results}
        if (
            len(names) == len(table.blocks)
            and names == brought
            and table.rule is not None
            and not optimizers.find(table.rule).direction
            and all(_taken_alone(graph, node, name) for name in brought)
            and all(_from_all(graph, node, graph.sends[edge]) for edge in messages)
        ):
            found[table.name] = tuple(messages[edge] for edge in sorted(messages))
    return found


def _taken_alone(graph: Graph, node: str, gradient: str) -> bool:
    """Whether one update is all that takes it here, without a scale."""
    users = [op for op in graph.uses.get(gradient, ()) if node in graph.nodes(op)]
    return len(users) == 1 and is_update(users[0].kind) and len(users[0].operands) == 2


def _from_all(graph: Graph, node: str, send: Op) -> bool:
    """Whether every sender has a part of every value, and none of them is the node."""
    sources = graph.nodes(send)
    layouts = {graph.values[name].layout for name in send.operands}
    return node not in sources and (len(sources) == 1 or layouts == {"P"})
