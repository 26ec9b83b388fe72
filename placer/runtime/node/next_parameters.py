"""Parameters of the next step that are on their way while this one is not done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from placer.channel.interface import Key
from placer.runtime.exchange.exchange import Exchange
from placer.runtime.exchange.sent_back import SentBack
from placer.runtime.node.position import Position
from placer.tables.protocol import ProgramTable


@dataclass(slots=True)
class NextParameters:
    """A node's part in parameters that servers send as they update them.

    Attributes:
        position: where the node is.
        exchange: the node's end of all edges.
        sent_back: the edges of each table whose parameters this node sends as it updates
            them, with the indices of their blocks.
        expected: the edges by which this node receives such parameters.
        steps: the step of the parameters that were sent last on each edge.
    """

    position: Position
    exchange: Exchange
    sent_back: Mapping[str, Sequence[tuple[int, Sequence[int]]]] = field(
        default_factory=dict
    )
    expected: Sequence[int] = ()
    steps: dict[int, int] = field(default_factory=dict, init=False)

    def begin(self, name: str, table: ProgramTable) -> SentBack | None:
        """Begin to send the values of a table that the next step sends, if there is
        such a step."""
        edges = self.sent_back.get(name, ())
        if not edges or self.position.is_last:
            return None
        step = self.position.step + 1
        self.steps.update((edge, step) for edge, _ in edges)
        return SentBack(self.exchange, edges, table.values(), step)

    def expect(self) -> None:
        """Let the parameters of the next step, if there is one, arrive from now on."""
        if not self.position.is_last:
            for edge in self.expected:
                self.exchange.expect(Key(edge, self.position.step + 1))

    def discard(self, node: str, step: int) -> None:
        """Receive the parameters that others have sent to a node for a step that it does
        not do."""
        for edge in self.exchange.edges.values():
            if edge.sent_back and node in edge.targets:
                self.exchange.discard(Key(edge.id, step))
