"""Parameters of the next step that servers send while the current step still runs."""

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
    """Sends and receives parameters of the next step during the current step.

    Attributes:
        position: the current step of the node.
        exchange: the node's side of all edges.
        sent_back: for each table, the edges that send its parameters while it is updated,
            with the indices of their blocks.
        expected: the edges on which this node receives such parameters.
        steps: for each edge, the step of the parameters sent last.
    """

    position: Position
    exchange: Exchange
    sent_back: Mapping[str, Sequence[tuple[int, Sequence[int]]]] = field(
        default_factory=dict
    )
    expected: Sequence[int] = ()
    steps: dict[int, int] = field(default_factory=dict, init=False)

    def begin(self, name: str, table: ProgramTable) -> SentBack | None:
        """Start sending the parameters of a table for the next step. Return None if the table
        sends none, or if no step follows."""
        edges = self.sent_back.get(name, ())
        if not edges or self.position.is_last:
            return None
        step = self.position.step + 1
        self.steps.update((edge, step) for edge, _ in edges)
        return SentBack(self.exchange, edges, table.values(), step)

    def expect(self) -> None:
        """Accept parameters of the next step from now on, if a next step exists."""
        if not self.position.is_last:
            for edge in self.expected:
                self.exchange.expect(Key(edge, self.position.step + 1))

    def discard(self, node: str, step: int) -> None:
        """Receive and drop the parameters sent to a node for a step that will not run."""
        for edge in self.exchange.edges.values():
            if edge.sent_back and node in edge.targets:
                self.exchange.discard(Key(edge.id, step))
