"""The warm-up: every node runs its program on zeros before the first step.

So all nodes compile at the same time, instead of one after the other while they wait
for messages in the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from placer.build.plan import Column, Edge, EdgeValue, NodePhase, NodePlan, Plan
from placer.config.sources import POSITION
from placer.layouts.conversions import pieces_for
from placer.memory import aligned
from placer.runtime.program.devices import Devices
from placer.runtime.program.microbatches import MicrobatchCalls, Microbatches
from placer.runtime.program.node import Node as RunningNode
from placer.runtime.run.tables import NodeTable
from placer.tables.dense import Table

Array = npt.NDArray[Any]
Hook = Callable[[Any], None]


@dataclass(slots=True)
class WarmUpNode(MicrobatchCalls):
    """A stand-in for `placer.runtime.program.node.Node` that has no peers and no rows.

    Arrays that would be read or received are zeros of their type; nothing is sent,
    updated or recorded. Arrays have the dtype, the shape, the alignment and the devices
    of real ones, so that XLA compiles the same functions that the steps run.

    Attributes:
        name: the name of the node.
        edges: the edges of the plan, by number.
        tables: the tables of the node, whose values are not changed.
        devices: the devices of the node.
        columns: the inputs, by name.
        phase: what the plan says about the node in this phase.
        sizes: the numbers of rows of the global batches to run.
        workers: the number of workers in the plan.
        micro: the microbatches of a step.
        count: the number of rows of the current global batch.
    """

    name: str
    edges: Mapping[int, Edge]
    tables: Mapping[str, NodeTable]
    devices: Devices
    columns: Mapping[str, Column]
    phase: NodePhase
    sizes: Sequence[int]
    workers: int
    micro: Microbatches = field(default_factory=Microbatches)
    count: int = 0

    def __post_init__(self) -> None:
        self.count = self.sizes[0]

    def read(self, *values: str) -> Any:
        reads = {read.value: read for read in self.phase.reads}
        arrays = []
        for value in values:
            read = reads[value]
            rows = sum(high - low for low, high in self.own_ranges(read.shard))
            if read.input == POSITION:
                arrays.append(_zeros("uint32", (rows, 2)))
            else:
                column = self.columns[read.input]
                arrays.append(_zeros(column.dtype, (rows, *column.shape)))
        return arrays[0] if len(arrays) == 1 else tuple(arrays)

    def values(self, table: str) -> tuple[Any, ...]:
        return self.tables[table].values()

    def memcpy_h2d(self, *values: Any, to: str, rows: int = 0) -> tuple[Any, ...]:
        return self.devices.copy_to_devices(values, to, rows)

    def memcpy_d2d(self, *values: Any, to: str, rows: int = 0) -> tuple[Any, ...]:
        return self.devices.copy_to_devices(values, to, rows)

    def memcpy_d2h(self, *values: Any, wait: bool = False) -> tuple[Any, ...]:
        return self.devices.copy_to_host(values, wait)

    def receive(self, edge: int) -> tuple[Array, ...]:
        edge_plan = self.edges[edge]
        return tuple(
            _zeros(value.dtype, self._shape(edge_plan, value))
            for value in edge_plan.values
        )

    def _shape(self, edge: Edge, edge_value: EdgeValue) -> tuple[int, ...]:
        sizes = [self.rows if d == "batch" else int(d) for d in edge_value.shape]
        if edge_value.layouts[1] == "S":
            conversion = edge_value.layouts, edge.sources, edge.targets
            own_pieces = pieces_for(*conversion, self.name, self.rows, self.workers)
            sizes[0] = max(
                (p.target_offset + p.high - p.low for p in own_pieces), default=0
            )
        return tuple(sizes)

    def cut(self, gradient: Any, start: int, stop: int) -> Array:
        return _zeros(np.asarray(gradient).dtype, (stop - start,))

    def assemble(self, *blocks: Array, shape: tuple[int, ...]) -> Array:
        return _zeros(blocks[0].dtype, shape)

    def direct(self, table: str, *gradients: Any, scale: Any = None) -> tuple[Any, ...]:
        _wait_for(gradients)
        values = self.tables[table].values()
        if not isinstance(self.tables[table], Table):
            return values  # of the same shapes and on the same devices as directions
        return tuple(_zeros(value.dtype, value.shape) for value in values)

    def send(self, edge: int, *values: Any) -> None:
        _wait_for(values)

    def send_and_recv(self, edge: int, *values: Any, back: int) -> tuple[Array, ...]:
        self.send(edge, *values)
        return self.receive(back)

    def update(self, table: str, *gradients: Any, scale: Any = None) -> None:
        _wait_for((*gradients, scale))

    def update_by(self, table: str, *ratios: Any) -> None:
        _wait_for(ratios)

    def apply(self, table: str, *edges: int) -> None:
        pass

    def store(self, table: str, *values: Any) -> None:
        _wait_for(values)

    def record(self, /, **metrics: Any) -> None:
        _wait_for(metrics.values())

    def batches(self) -> Iterator[int]:
        for batch, rows in enumerate(self.sizes):
            self.count = rows
            yield batch


def run_warm_up(
    plan: Plan,
    me: NodePlan,
    running: RunningNode,
    hooks: tuple[Hook, Hook | None],
    sizes: tuple[Sequence[int], Sequence[int]],
) -> None:
    """Run a node's `step` and `evaluate` on zeros, and wait for their results.

    Args:
        plan: the plan.
        me: the node in the plan.
        running: the node that will run the steps.
        hooks: the program's `step` and `evaluate`.
        sizes: the numbers of rows that a batch may have, in training and in evaluation.
    """
    tables, devices = running.tables, running.devices
    edges = {edge.id: edge for edge in (*plan.step_edges, *plan.evaluation_edges)}
    columns = {column.name: column for column in plan.columns}
    step, evaluate = hooks
    for size in sizes[0]:
        of_step = columns, me.step, (size,), plan.workers
        step(WarmUpNode(me.name, edges, tables, devices, *of_step, running.micro))
    if evaluate is not None and me.evaluation is not None:
        of_evaluation = me.evaluation, sizes[1], plan.workers
        evaluate(WarmUpNode(me.name, edges, tables, devices, columns, *of_evaluation))


def _zeros(dtype: npt.DTypeLike, shape: Sequence[int]) -> Array:
    array = aligned.zeros(tuple(shape), np.dtype(dtype))
    array.flags.writeable = False
    return array


def _wait_for(values: Any) -> None:
    """Wait until the values are computed, so that an error is raised here."""
    for value in values:
        if value is not None:
            np.asarray(value)
