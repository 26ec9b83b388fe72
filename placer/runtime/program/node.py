"""What a node program runs on: the few calls that its `step` is written in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from placer.build.plan import Phase
from placer.channel.protocol import Key
from placer.config.sources import POSITION
from placer.layouts.conversions import Share
from placer.runtime.program.devices import Devices
from placer.runtime.program.exchange import Exchange
from placer.runtime.program.microbatches import MicrobatchCalls, Microbatches
from placer.runtime.run.batches import Batches
from placer.runtime.run.tables import AnyTable
from placer.tables.dense import Table
from placer.tables.learning_rate import Schedule

Array = npt.NDArray[Any]


@dataclass(slots=True)
class Node(MicrobatchCalls):
    """One node in a run, as its program sees it.

    `count` is the number of rows of the current global batch. Arrays are numpy; a
    jitted function takes them without a copy. `watch` takes what is recorded, and how
    many rows a plain number of it counts by.
    """

    name: str
    exchange: Exchange
    tables: Mapping[str, AnyTable]
    schedules: Mapping[str, Schedule]
    training: Batches
    evaluating: Batches | None
    phases: tuple[Phase, Phase | None]
    watch: Callable[[Mapping[str, Any], int], None]
    devices: Devices
    micro: Microbatches = field(default_factory=Microbatches)
    where: str = ""
    count: int = 0
    _recorded: tuple[Any, ...] = ()
    _step: int = 0
    _position: tuple[int, int] = (1, 0)
    _batch: int = 0
    _evaluation: bool = False

    # What a program calls.

    def read(self, *values: str) -> Any:
        """This node's rows of the current global batch, one array per value."""
        batches, phase = self._batches, self._phase
        indices = batches.order.indices(*self._position)
        taken: dict[Share, dict[str, Array]] = {}
        found = []
        reads = {read.value: read for read in phase.reads}
        for value in values:
            read = reads[value]
            own = self.own_ranges(read.share)
            if read.input == POSITION:
                rows = [np.arange(low, high) for low, high in own]
                found.append(_positions(self._step, _joined(rows)))
                continue
            if read.share not in taken:
                assert batches.rows is not None
                rows = [indices[low:high] for low, high in own]
                taken[read.share] = batches.rows.take(_joined(rows))
            found.append(taken[read.share][read.input])
        return found[0] if len(found) == 1 else tuple(found)

    def values(self, table: str) -> tuple[Any, ...]:
        """The current values of a table's blocks, in its order."""
        return self.tables[table].values()

    def memcpy_h2d(self, *values: Any, to: str, rows: int = 0) -> tuple[Any, ...]:
        """Copy from this node's memory to devices; the first `rows` arrays are split
        over them by their rows."""
        return self.devices.put(values, to, rows)

    def memcpy_d2d(self, *values: Any, to: str, rows: int = 0) -> tuple[Any, ...]:
        """Copy from devices to others, as `memcpy_h2d` does."""
        return self.devices.put(values, to, rows)

    def memcpy_d2h(self, *values: Any, wait: bool = False) -> tuple[Any, ...]:
        """Copy to this node's memory. With `wait` the copies are there when this
        returns, for a function on the CPU to take."""
        return self.devices.take(values, wait)

    def update(self, table: str, *gradients: Any, scale: Any = None) -> None:
        """Apply one gradient per block, by the optimizer's rule at this step's rate."""
        rate = self.schedules[table](self._step - 1)
        self.tables[table].update(gradients, learning_rate=rate, scale=scale)

    def apply(self, table: str, *edges: int) -> None:
        """Wait for the gradients that edges bring, sum those of all sources in their
        order, and apply them by the optimizer's rule, piece by piece as they come."""
        held = self.tables[table]
        assert isinstance(held, Table), f"{table} is not in memory"
        rate = self.schedules[table](self._step - 1)
        with held.updating(learning_rate=rate) as update:
            for edge in edges:
                for name, start, views in self.exchange.chunks(self._key(edge)):
                    update.apply(held.takes[name], start, views)

    def direct(self, table: str, *gradients: Any, scale: Any = None) -> tuple[Any, ...]:
        """Which way each block goes: the first half of an optimizer that then needs
        the norms of whole parameters."""
        return self.tables[table].direct(gradients, scale=scale)

    def update_by(self, table: str, *ratios: Any) -> None:
        """Go the way that `direct` has found, by one ratio a block."""
        rate = self.schedules[table](self._step - 1)
        self.tables[table].update_by(ratios, learning_rate=rate)

    def store(self, table: str, *values: Any) -> None:
        """Take the new values of a table's blocks, which no optimizer makes."""
        self.tables[table].load([np.asarray(value) for value in values])

    def send(self, edge: int, *values: Any) -> None:
        """Send an edge's values to the nodes that need them."""
        self.exchange.send(self._key(edge), values, self.rows)

    def receive(self, edge: int) -> tuple[Array, ...]:
        """Wait for an edge's values, put together as the plan says."""
        return self.exchange.receive(self._key(edge), self.rows)

    def send_and_recv(self, edge: int, *values: Any, back: int) -> tuple[Array, ...]:
        """Have a heter node run a block on these values; wait for what comes back of it
        by the other edge."""
        self.send(edge, *values)
        return self.receive(back)

    def cut(self, gradient: Any, start: int, stop: int) -> Array:
        """Elements [start, stop) of a value, flattened in C order: a view."""
        return np.asarray(gradient).reshape(-1)[start:stop]

    def assemble(self, *blocks: Any, shape: tuple[int, ...]) -> Array:
        """A parameter of this shape from its blocks."""
        return self.exchange.assemble([np.asarray(block) for block in blocks], shape)

    def record(self, /, **metrics: Any) -> None:
        """Give this node's part of metrics, of a step or of an evaluation's batch.

        They need not be computed yet: nobody waits for them here.
        """
        # A parameter's memory is written to again; what JAX computed is not.
        kept = {
            name: value.copy() if isinstance(value, np.ndarray) else value
            for name, value in metrics.items()
        }
        if self._evaluation:
            self._recorded += tuple(kept.values())
        self.watch(kept, self.count if self._evaluation else 1)

    def batches(self) -> Iterator[int]:
        """Go through the batches of an evaluation.

        Each is computed when the next one is over, and all of them in the end: then
        nobody looks at the parameters any more.
        """
        order = self._batches.order
        before: tuple[Any, ...] = ()
        for batch in range(order.steps_per_epoch):
            self._batch = batch
            self._position = (1, batch)
            self.count = self._batches.count(batch)
            yield batch
            for value in before:
                np.asarray(value)
            before, self._recorded = self._recorded, ()
        for value in before:
            np.asarray(value)

    # What the executor calls.

    def enter_step(self, step: int, epoch: int, index: int) -> None:
        """Begin training step `step` (from 1), the epoch's `index`-th (from 0)."""
        self.where = f"step {step}"
        self._step, self._position, self._evaluation = step, (epoch, index), False
        self._batch = 0
        self.count = self.training.count(index)
        self.exchange.new_step()

    def enter_evaluation(self, step: int) -> None:
        """Begin the evaluation that follows a training step."""
        self.where = f"evaluation after step {step}"
        self._evaluation, self._batch = True, 0
        self.count = 0
        self.exchange.new_step()

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
        if self.exchange.edges[edge].once:
            return Key(edge, self._step)
        return Key(edge, self._step, self.micro.number or self._batch)


def _positions(step: int, rows: Array) -> Array:
    """The step, and each row's number in the global batch."""
    found = np.empty((len(rows), 2), np.uint32)
    found[:, 0] = step
    found[:, 1] = rows
    return found


def _joined(parts: Sequence[Array]) -> Array:
    """Numbers of rows, one range after the other."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
