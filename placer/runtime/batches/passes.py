"""Maps the steps of a run to its passes over the rows of the source."""

from __future__ import annotations

from dataclasses import dataclass

Position = tuple[int, int]
"""The epoch of a step, from 1, and the number of its batch in the epoch, from 0."""


@dataclass(frozen=True, slots=True)
class Passes:
    """The passes of a run over its rows. A pass is an epoch.

    All passes over the same rows have the same number of steps. A run that has trained other
    rows before (`--new-rows`, or a stream) begins its passes after a step, with the next epoch.

    Attributes:
        length: the number of steps of a pass.
        last: the last known step: that of the run, or that of the present pass of a stream.
        step: the last step before the passes over these rows; 0 at the start of a run.
        epoch: the epoch of that step; 0 at the start of a run.
    """

    length: int
    last: int
    step: int = 0
    epoch: int = 0

    def place_of(self, step: int) -> Position:
        """Return the epoch and the batch of a step, from 1.

        >>> Passes(10, 20).place_of(11), Passes(10, 14, step=4, epoch=3).place_of(5)
        ((2, 0), (4, 0))
        """
        epoch, index = divmod(step - 1 - self.step, self.length)
        return self.epoch + 1 + epoch, index

    def step_at(self, position: Position) -> int:
        """Return the step of an epoch and a batch."""
        epoch, index = position
        return self.step + (epoch - 1 - self.epoch) * self.length + index + 1

    def following(self, position: Position) -> Position | None:
        """Return the position of the next step; None after the last known step."""
        step = self.step_at(position)
        return self.place_of(step + 1) if step < self.last else None

    def ends(self, step: int) -> bool:
        """Return whether a step is the last one of a pass."""
        return (step - self.step) % self.length == 0
