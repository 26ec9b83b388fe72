"""What a node program runs on: the few calls that its `step` is written in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from placer.graph.rows import part
from placer.plan import Phase
from placer.readers import Order, Rows
from placer.runtime.channel.protocol import Key
from placer.runtime.exchange import Exchange
from placer.runtime.schedules import Schedule
from placer.runtime.table import Table

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Batches:
    """The global batches of a source. `rows` is None on a node that reads nothing."""

    order: Order
    rows: Rows | None


@dataclass(slots=True)
class Node:
    """One node in a run, as its program sees it.

    `count` is the number of rows of the current global batch. Arrays are numpy; a
    jitted function takes them without a copy.
    """

    name: str
    exchange: Exchange
    tables: Mapping[str, Table]
    schedules: Mapping[str, Schedule]
    training: Batches
    evaluating: Batches | None
    phases: tuple[Phase, Phase | None]
    where: str = ""
    count: int = 0
    records: dict[str, float] = field(default_factory=dict)
    _step: int = 0
    _position: tuple[int, int] = (1, 0)
    _microbatch: int = 0
    _evaluation: bool = False

    # What a program calls.

    def read(self, *values: str) -> Any:
        """This node's rows of the current global batch, one array per value."""
        batches, phase = self._batches, self._phase
        assert batches.rows is not None
        indices = batches.order.indices(*self._position)
        taken: dict[tuple[int, int], dict[str, Array]] = {}
        found = []
        reads = {read.value: read for read in phase.reads}
        for value in values:
            read = reads[value]
            share = (read.index, read.parts)
            if share not in taken:
                low, high = part(len(indices), *share)
                taken[share] = batches.rows.take(indices[low:high])
            found.append(taken[share][read.input])
        return found[0] if len(found) == 1 else tuple(found)

    def values(self, table: str) -> tuple[Array, ...]:
        """The current values of a table's blocks, in its order."""
        return self.tables[table].values()

    def update(self, table: str, *gradients: Any, scale: Any = None) -> None:
        """Apply one gradient per block, by the optimizer's rule at this step's rate."""
        rate = self.schedules[table](self._step - 1)
        self.tables[table].update(gradients, learning_rate=rate, scale=scale)

    def send(self, edge: int, *values: Any) -> None:
        """Send an edge's values to the nodes that need them."""
        self.exchange.send(self._key(edge), values, self.count)

    def receive(self, edge: int) -> tuple[Array, ...]:
        """Wait for an edge's values, put together as the plan says."""
        return self.exchange.receive(self._key(edge), self.count)

    def assemble(self, *blocks: Array, shape: tuple[int, ...]) -> Array:
        """A parameter of this shape from its blocks."""
        return self.exchange.assemble(blocks, shape)

    def record(self, **metrics: Any) -> None:
        """Give this node's part of metrics: of the step, or summed over an evaluation
        with the number of rows as weight."""
        for name, value in metrics.items():
            number = float(np.asarray(value))
            if self._evaluation:
                total = self.records.get(name, 0.0)
                self.records[name] = total + number * self.count
            else:
                self.records[name] = number

    def batches(self) -> Iterator[int]:
        """Go through the batches of an evaluation."""
        order = self._batches.order
        for batch in range(order.steps_per_epoch):
            self._microbatch = batch
            self._position = (1, batch)
            self.count = _rows_of(order, batch)
            yield batch

    # What the executor calls.

    def enter_step(self, step: int, epoch: int, index: int) -> None:
        """Begin training step `step` (from 1), the epoch's `index`-th (from 0)."""
        self.where = f"step {step}"
        self._step, self._position, self._evaluation = step, (epoch, index), False
        self._microbatch = 0
        self.count = _rows_of(self.training.order, index)
        self.records = {}
        self.exchange.new_step()

    def enter_evaluation(self, step: int) -> None:
        """Begin the evaluation that follows a training step."""
        self.where = f"evaluation after step {step}"
        self._evaluation, self._microbatch = True, 0
        self.count = 0
        self.records = {}
        self.exchange.new_step()

    @property
    def evaluated_rows(self) -> int:
        """How many rows an evaluation goes through, on all nodes together."""
        assert self.evaluating is not None
        order = self.evaluating.order
        return min(order.rows, order.steps_per_epoch * order.batch)

    @property
    def _phase(self) -> Phase:
        phase = self.phases[self._evaluation]
        assert phase is not None
        return phase

    @property
    def _batches(self) -> Batches:
        if not self._evaluation:
            return self.training
        assert self.evaluating is not None
        return self.evaluating

    def _key(self, edge: int) -> Key:
        once = self.exchange.edges[edge].once
        return Key(edge, self._step, 0 if once else self._microbatch)


def _rows_of(order: Order, index: int) -> int:
    return min(order.batch, order.rows - index * order.batch)
