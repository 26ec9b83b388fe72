"""The learning rates of a node's tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from placer.plan.settings.training.update_modes import Mode
from placer.runtime.exchange.worker_messages import WorkerMessage
from placer.runtime.node.position import Position
from placer.tables.learning_rate import Schedule


@dataclass(frozen=True, slots=True)
class LearningRates:
    """The learning rates of tables.

    Attributes:
        position: the current step of the node.
        schedules: the learning-rate schedule of each table, by name.
        modes: the update mode of each asynchronous table, by name.
    """

    position: Position
    schedules: Mapping[str, Schedule]
    modes: Mapping[str, Mode]

    def of(self, table: str, message: WorkerMessage | None = None) -> float:
        """Return the learning rate of a table in this step, or in the step of a worker's message."""
        if message is None:
            return self.schedules[table](self.position.step - 1)
        rate = self.schedules[table](message.step - 1)
        if self.modes[table].staleness_scale:
            rate /= 1 + message.staleness
        return rate
