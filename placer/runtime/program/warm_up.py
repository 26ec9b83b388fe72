"""A step that only compiles: every node runs its program on zeros before the first step.

So all compile at the same time, and none in the midst of a step that others wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from placer.build.plan import Column, Edge, Moved, Node, Phase, Plan
from placer.config.sources import POSITION
from placer.layouts.conversions import pieces
from placer.memory import aligned
from placer.runtime.program.devices import Devices
from placer.runtime.program.microbatches import MicrobatchCalls, Microbatches
from placer.runtime.program.node import Node as RunningNode
from placer.runtime.run.tables import AnyTable
from placer.tables.dense import Table

Array = npt.NDArray[Any]
Hook = Callable[[Any], None]


@dataclass(slots=True)
class Rehearsal(MicrobatchCalls):
    """What a program calls, without anybody else: every array that would come is zeros
    of its type, and nothing is sent, updated or recorded.

    The calls are those of `placer.runtime.program.node.Node`, and arrays lie as they will, so
    that what XLA compiles for them is what the steps run. `sizes` are the rows of the
    global batches to go through: the full one, and the short tail where there is one.
    """

    name: str
    edges: Mapping[int, Edge]
    tables: Mapping[str, AnyTable]
    devices: Devices
    columns: Mapping[str, Column]
    phase: Phase
    sizes: Sequence[int]
    workers: int
    micro: Microbatches = field(default_factory=Microbatches)
    count: int = 0

    def __post_init__(self) -> None:
        self.count = self.sizes[0]

    def read(self, *values: str) -> Any:
        reads = {read.value: read for read in self.phase.reads}
        found = []
        for value in values:
            read = reads[value]
            rows = sum(high - low for low, high in self.own_ranges(read.share))
            if read.input == POSITION:
                found.append(_zeros("uint32", (rows, 2)))
            else:
                column = self.columns[read.input]
                found.append(_zeros(column.dtype, (rows, *column.shape)))
        return found[0] if len(found) == 1 else tuple(found)

    def values(self, table: str) -> tuple[Any, ...]:
        return self.tables[table].values()

    def memcpy_h2d(self, *values: Any, to: str, rows: int = 0) -> tuple[Any, ...]:
        return self.devices.put(values, to, rows)

    def memcpy_d2d(self, *values: Any, to: str, rows: int = 0) -> tuple[Any, ...]:
        return self.devices.put(values, to, rows)

    def memcpy_d2h(self, *values: Any, wait: bool = False) -> tuple[Any, ...]:
        return self.devices.take(values, wait)

    def receive(self, edge: int) -> tuple[Array, ...]:
        moved = self.edges[edge]
        return tuple(
            _zeros(value.dtype, self._shape(moved, value)) for value in moved.values
        )

    def _shape(self, edge: Edge, moved: Moved) -> tuple[int, ...]:
        sizes = [self.rows if d == "batch" else int(d) for d in moved.shape]
        if moved.layouts[1] == "S":
            ways = moved.layouts, edge.sources, edge.targets
            found = pieces(*ways, self.name, self.rows, self.workers)
            sizes[0] = max((p.into + p.high - p.low for p in found), default=0)
        return tuple(sizes)

    def cut(self, gradient: Any, start: int, stop: int) -> Array:
        return _zeros(np.asarray(gradient).dtype, (stop - start,))

    def assemble(self, *blocks: Array, shape: tuple[int, ...]) -> Array:
        return _zeros(blocks[0].dtype, shape)

    def direct(self, table: str, *gradients: Any, scale: Any = None) -> tuple[Any, ...]:
        _settle(gradients)
        values = self.tables[table].values()
        if not isinstance(self.tables[table], Table):
            return values  # which are where directions would be
        return tuple(_zeros(value.dtype, value.shape) for value in values)

    def send(self, edge: int, *values: Any) -> None:
        _settle(values)

    def send_and_recv(self, edge: int, *values: Any, back: int) -> tuple[Array, ...]:
        self.send(edge, *values)
        return self.receive(back)

    def update(self, table: str, *gradients: Any, scale: Any = None) -> None:
        _settle((*gradients, scale))

    def update_by(self, table: str, *ratios: Any) -> None:
        _settle(ratios)

    def apply(self, table: str, *edges: int) -> None:
        pass

    def store(self, table: str, *values: Any) -> None:
        _settle(values)

    def record(self, /, **metrics: Any) -> None:
        _settle(metrics.values())

    def batches(self) -> Iterator[int]:
        for batch, rows in enumerate(self.sizes):
            self.count = rows
            yield batch


def rehearse(
    plan: Plan,
    me: Node,
    running: RunningNode,
    hooks: tuple[Hook, Hook | None],
    sizes: tuple[Sequence[int], Sequence[int]],
) -> None:
    """Run a node's `step` and `evaluate` until all that they compute is there.

    `sizes` are those of the batches of both.
    """
    tables, devices = running.tables, running.devices
    edges = {edge.id: edge for edge in (*plan.step_edges, *plan.evaluation_edges)}
    columns = {column.name: column for column in plan.columns}
    step, evaluate = hooks
    for size in sizes[0]:
        rows = columns, me.step, (size,), plan.workers
        step(Rehearsal(me.name, edges, tables, devices, *rows, running.micro))
    if evaluate is not None and me.evaluation is not None:
        whole = me.evaluation, sizes[1], plan.workers
        evaluate(Rehearsal(me.name, edges, tables, devices, columns, *whole))


def _zeros(dtype: npt.DTypeLike, shape: Sequence[int]) -> Array:
    array = aligned.zeros(tuple(shape), np.dtype(dtype))
    array.flags.writeable = False
    return array


def _settle(values: Any) -> None:
    """Wait until they are computed: what fails is to fail here."""
    for value in values:
        if value is not None:
            np.asarray(value)
