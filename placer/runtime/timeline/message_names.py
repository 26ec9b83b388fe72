"""Names the messages of a run after the values that they contain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from placer.channel.interface import Array, Key
from placer.plan.plan import Edge, Plan
from placer.runtime.control.barrier import COMPUTED, FIRST, NEWEST, REPLICAS
from placer.runtime.exchange.worker_messages import MessageKind

_INTERNAL: Final[Mapping[int, str]] = {
    COMPUTED: "finished step",
    NEWEST: "newest step",
    FIRST: "fastest workers",
    REPLICAS: "parameters",
}
"""The names of the runtime's own messages, by edge."""


class Named(NamedTuple):
    """The name of a message, such as `h1.w +2`, and the values that it contains."""

    name: str
    values: tuple[str, ...] = ()


class MessageNames:
    """The names of all messages of a plan.

    A value has its name at the sender. The rows of a sparse table have their name at the
    receiver, `wide.rows`.
    """

    def __init__(self, plan: Plan) -> None:
        edges = (*plan.step_edges, *plan.evaluation_edges, *plan.prediction_edges)
        self._of_edge = {edge.id: _name(edge) for edge in edges}
        self._pushes = {edge.id: edge for edge in edges if edge.is_push}
        # The keys of an asynchronous sparse table travel on the edge of its gradients.
        keys = {each.sparse_tables: each.id for each in edges if _moves(each) == "keys"}
        self._keys_of_push = {
            push.id: keys[push.sparse_tables]
            for push in self._pushes.values()
            if push.is_by_key
        }

    def of(self, key: Key, first: Array | None) -> Named:
        """Return the name of a message; `first` is the start of its first array, if any."""
        named = self._of_edge.get(key.edge)
        if named is None:
            return Named(_INTERNAL.get(key.edge, f"edge {key.edge}"))
        if key.edge not in self._pushes or first is None or not first.size:
            return named
        match int(first.flat[0]):  # the header of a worker's message
            case MessageKind.REQUEST:
                return Named("request")
            case MessageKind.DRAIN:
                return Named("drain")
            case MessageKind.ASK:
                return self._of_edge[self._keys_of_push[key.edge]]
        return named


def _name(edge: Edge) -> Named:
    """Return the name of an edge's messages: the first value, and how many follow."""
    moves = _moves(edge)
    is_of_rows = moves == "rows"
    values = tuple(v.result if is_of_rows else v.operand for v in edge.values)
    if not values:
        return Named(f"edge {edge.id}")
    first, others = values[0], len(values) - 1
    if moves == "keys":
        table, *more = (name for value in edge.values for name in value.tables)
        first, others = f"keys of {table}", len(more)
    return Named(f"{first} +{others}" if others else first, values)


def _moves(edge: Edge) -> str:
    return edge.declared.moves if edge.declared is not None else ""
