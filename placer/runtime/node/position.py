"""The position of a node in a run: its step, batch and microbatch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placer.channel.interface import Key
from placer.place.layouts.partition import RowRange, RowShard, part_range
from placer.plan.plan import Edge
from placer.runtime.batches.batches import own_ranges


@dataclass(slots=True)
class Position:
    """The position of a node in a run.

    The driver and the loops of the program advance it; all calls of the node refer to it.

    Attributes:
        parts: the number of microbatches of a step.
        step: the current training step, from 1; in an evaluation, the step before it.
        epoch: the current epoch, from 1.
        batch: the number of the global batch in its epoch or evaluation, from 0.
        count: the number of rows of this batch, on all nodes together.
        microbatch: the current microbatch, from 0; None outside a microbatch.
        evaluation: whether an evaluation or a prediction runs.
        last_step: the number of the last training step of the run.
        where: the position in words for messages, such as `step 3`.
    """

    parts: int = 1
    step: int = 0
    epoch: int = 1
    batch: int = 0
    count: int = 0
    microbatch: int | None = None
    evaluation: bool = False
    last_step: int = 0
    where: str = ""

    def enter_step(self, step: int, epoch: int, batch: int, count: int) -> None:
        """Begin a training step with a batch of `count` rows."""
        self.where = f"step {step}"
        self.step, self.epoch, self.evaluation = step, epoch, False
        self.batch, self.count = batch, count

    def enter_evaluation(self, step: int) -> None:
        """Begin the evaluation after a training step."""
        self.where = f"evaluation after step {step}"
        self.step, self.epoch, self.evaluation = step, 1, True
        self.batch, self.count = 0, 0

    def enter_batch(self, batch: int, count: int) -> None:
        """Begin an evaluation batch of `count` rows."""
        self.batch, self.count = batch, count

    @property
    def is_last(self) -> bool:
        """Whether this is the last training step of the run."""
        return self.step >= self.last_step

    @property
    def row_range(self) -> RowRange:
        """The rows [low, high) of the global batch in the current microbatch, on all
        nodes. Outside a microbatch, all rows of the global batch."""
        if self.microbatch is None:
            return 0, self.count
        return part_range(self.count, self.microbatch, self.parts)

    @property
    def rows(self) -> int:
        """The number of rows in `row_range`."""
        low, high = self.row_range
        return high - low

    def own_ranges(self, shard: RowShard) -> Sequence[RowRange]:
        """Return the rows of the current microbatch that belong to a node.

        Args:
            shard: the node's part of a batch, from the plan.

        Returns:
            Ranges (start, stop) of rows of the global batch.
        """
        return own_ranges(shard, self.count, self.microbatch, self.parts)

    def own_rows(self, shard: RowShard) -> int:
        """Return the number of rows of the batch that belong to a node."""
        return shard.num_rows(self.count, self.parts)

    def key(self, edge: Edge) -> Key:
        """Return the address of the current message of an edge."""
        # An edge outside the loop over microbatches has one message per step. Training has
        # microbatches and a single batch; an evaluation has batches and no microbatches.
        if edge.once:
            return Key(edge.id, self.step)
        part = self.batch if self.evaluation else self.microbatch or 0
        return Key(edge.id, self.step, part)
