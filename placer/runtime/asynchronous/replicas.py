"""Parameters that each worker keeps a copy of; a drain resets all copies to the first worker's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placer.channel.interface import Array, Channel, Key
from placer.errors import RunError
from placer.runtime.control.barrier import REPLICAS
from placer.tables.block_table import BlockTable


@dataclass(frozen=True)
class Copies:
    """A table that several nodes keep a copy of. A drain resets all to the first node's.

    Attributes:
        table: this node's copy.
        nodes: the nodes, in order.
        trains: whether the table has parameters, not state.
    """

    table: BlockTable
    nodes: Sequence[str]
    trains: bool


class Replicas:
    """One worker's copies of tables that all workers keep.

    Args:
        channel: the node's channel.
        tables: the tables by name, equal on all workers.

    Attributes:
        divergence: the largest absolute difference between this worker's and the first
            worker's parameters at any drain; None if the tables have only state.
    """

    def __init__(self, channel: Channel, tables: Mapping[str, Copies]) -> None:
        self._channel, self._tables = channel, tables
        self._number = 0
        trains = any(each.trains for each in tables.values())
        self.divergence = 0.0 if trains else None

    def agree(self) -> None:
        """Copy the values, the slots and the update counts of the first worker. All
        workers must call this together."""
        self._number += 1
        key = Key(REPLICAS, self._number)
        for copies in self._tables.values():
            first, *others = copies.nodes
            if self._channel.node == first:
                arrays = _state(copies.table)
                for worker in others:
                    self._channel.send(worker, key, arrays)
            else:
                self._load(copies, self._channel.receive(first, key))

    def _load(self, copies: Copies, arrays: Sequence[Array]) -> None:
        table = copies.table
        count, slots = len(table.blocks), table.slots()
        expected = sum(value is not None for of in slots.values() for value in of)
        if len(arrays) != 1 + count + expected:
            raise RunError(
                f"table {table.name} of {copies.nodes[0]} has a different layout",
                hint="give every node of a run the same build",
            )
        updates, *rest = arrays
        values, received = rest[:count], iter(rest[count:])
        if copies.trains:
            for own, value in zip(table.values(), values, strict=True):
                distance = _distance(np.asarray(own), value)
                self.divergence = max(self.divergence or 0.0, distance)
        table.load(values)
        table.load_slots({
            slot: [None if value is None else next(received) for value in of_blocks]
            for slot, of_blocks in slots.items()
        })  # fmt: skip
        table.load_updates([int(each) for each in updates])


def _state(table: BlockTable) -> list[Array]:
    """Return the update counts, the values and the slots of a table."""
    arrays = [np.array(table.updates, np.int64)]
    arrays += [np.asarray(value) for value in table.values()]
    for slot in table.slots().values():
        arrays += [np.asarray(value) for value in slot if value is not None]
    return arrays


def _distance(own: Array, value: Array) -> float:
    if not own.size:
        return 0.0
    difference = np.abs(own.astype(np.float64) - value.astype(np.float64))
    return float(difference.max())
