"""Sends parameters for the next step while a server still updates them.

A server that applies gradients as they arrive has new values of the first elements while the
last gradients are still on the way. Sending these values at once keeps both directions of a
connection busy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placer.channel.interface import Array, Key
from placer.channel.open_message import OpenMessage
from placer.plan.plan import Edge, NodePlan
from placer.runtime.exchange.exchange import Exchange


@dataclass(slots=True)
class _Messages:
    """The messages of one edge."""

    blocks: Sequence[int]  # indices of the blocks in the messages
    messages: Sequence[OpenMessage]  # one per target
    at: int = 0  # index in `blocks` of the first block that is not fully updated


class SentBack:
    """The messages of one update of a table.

    Args:
        exchange: the node's side of all edges.
        edges: the edges that send back blocks of the table, with the indices of their
            blocks.
        values: the values of all blocks, which the update overwrites.
        step: the next step.
    """

    def __init__(
        self,
        exchange: Exchange,
        edges: Sequence[tuple[int, Sequence[int]]],
        values: Sequence[Array],
        step: int,
    ) -> None:
        self._sizes = [value.size for value in values]
        self._written = [0] * len(values)
        self._messages = [
            _Messages(
                blocks,
                exchange.begin_send(Key(edge, step), [values[i] for i in blocks]),
            )
            for edge, blocks in edges
        ]

    def written(self, block: int, stop: int) -> None:
        """Note that the elements of a block before `stop` are updated."""
        self._written[block] = stop
        for each in self._messages:
            last = len(each.blocks) - 1
            while each.at < last and self._is_written(each.blocks[each.at]):
                each.at += 1
            for message in each.messages:
                message.written(each.at, self._written[each.blocks[each.at]])

    def _is_written(self, block: int) -> bool:
        return self._written[block] == self._sizes[block]

    def end(self) -> None:
        """Note that all elements are updated."""
        for each in self._messages:
            for message in each.messages:
                message.end()


def find_sent_back(
    edges: Sequence[Edge], me: NodePlan
) -> dict[str, list[tuple[int, list[int]]]]:
    """Return, for each table of a server, the edges that send back its blocks. Each
    edge is given with the indices of its blocks in the table."""
    found: dict[str, list[tuple[int, list[int]]]] = {}
    for table in me.tables:
        index = {block.name: i for i, block in enumerate(table.blocks)}
        for edge in edges:
            names = [value.operand for value in edge.values]
            if edge.sent_back and me.name in edge.sources and names[0] in index:
                blocks = [index[name] for name in names]
                found.setdefault(table.name, []).append((edge.id, blocks))
    return found
