"""Computes the size in bytes of the rows of a sparse table.

The tables (`placer.tables.sparse`) use the same constants for storage. The compiler and
reports use this module to estimate sizes without building a table.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from placer.place.types import ITEM_BYTES
from placer.plan.settings.sparse.table import Bloom, SparseTable
from placer.plan.settings.training.optimizers import read_rule

LINE: Final = 64
"""The size of a cache line in bytes."""
CHUNK: Final = 256
"""The number of rows that a partition allocates at a time."""
METADATA: Final = 16
"""Bytes for a row's key, last-seen step and count."""
NUMBER: Final = 4
"""Bytes for a row's update count, its time in seconds, and its score, each."""
ENTRY: Final = {"wide": 16, "compact": 8}
"""Bytes per slot of each kind of index."""
MAX_LOAD: Final = 0.7
"""The maximum fraction of used slots in a partition."""
GROWTH: Final = 1.5
"""The growth factor of a full partition."""
MIN_SLOTS: Final = 16
"""The minimum number of slots in a partition, a multiple of the slots in a cache line."""


def row_length(count: int, itemsize: int) -> int:
    """Return `count` elements padded so that rows touch as few cache lines as possible.

    Padded rows are whole cache lines, or a power of two that divides one.
    """
    line = LINE // itemsize
    if count >= line:
        return -(-count // line) * line
    return 1 << max(0, (count - 1).bit_length())


@dataclass(frozen=True, slots=True)
class RowBytes:
    """The size in bytes of one row of a sparse table.

    Attributes:
        values: the values.
        slots: the optimizer slots with one number per element.
        padding: the gap before the next row.
        metadata: the key, the last-seen step and the count.
        numbers: each number that is stored once per row, by description.
        index: the entry in the index: the minimum (just before the index grows) and the
            maximum (just after).
    """

    values: int
    slots: int
    padding: int
    metadata: int
    numbers: dict[str, int]
    index: tuple[int, int]

    @property
    def stored(self) -> int:
        """The bytes of a row without its index entry."""
        row = self.values + self.slots + self.padding
        return row + self.metadata + sum(self.numbers.values())

    @property
    def total(self) -> tuple[int, int]:
        """The minimum and maximum bytes of a row with its index entry."""
        low, high = self.index
        return self.stored + low, self.stored + high


def row_bytes(settings: SparseTable, dtype: str) -> RowBytes:
    """Return the size of a row with values of `dtype`."""
    item, rule = ITEM_BYTES[dtype], read_rule(settings.rule, settings.hyper)
    row_slot = rule.row_slot
    slots = rule.first_slots.keys() - {row_slot}
    columns = settings.dim * (1 + len(slots))
    numbers = {}
    if row_slot:
        numbers[row_slot] = item
    if "b1" in rule.hyper:  # the bias correction of a row counts its own updates
        numbers["the number of its updates"] = NUMBER
    if settings.forget.unseen_seconds is not None:
        numbers["when it was last seen in seconds"] = NUMBER
    if settings.score is not None:
        numbers["its score"] = NUMBER
    entry = ENTRY[settings.index]
    return RowBytes(
        values=settings.dim * item,
        slots=settings.dim * len(slots) * item,
        padding=(row_length(columns, item) - columns) * item,
        metadata=METADATA,
        numbers=numbers,
        index=(ceil(entry / MAX_LOAD), ceil(entry * GROWTH / MAX_LOAD)),
    )


def table_bytes(settings: SparseTable, dtype: str, rows: int, held: int) -> int:
    """Return the minimum number of bytes for a node's part of a table.

    Args:
        settings: the settings of the table.
        dtype: the dtype of the values.
        rows: the rows of the whole table, assumed evenly spread over the partitions.
        held: the number of partitions on the node.
    """
    if settings.capacity is not None:
        rows = min(rows, settings.capacity)
    partitions = settings.partitions
    of_partition = -(-rows // partitions)
    chunks = -(-of_partition // CHUNK)
    slots = max(MIN_SLOTS, int(of_partition / MAX_LOAD))
    nbytes = held * chunks * CHUNK * row_bytes(settings, dtype).stored
    nbytes += (held * slots + (partitions - held) * MIN_SLOTS) * ENTRY[settings.index]
    if isinstance(settings.admit, Bloom):
        nbytes += settings.admit.nbytes * held // partitions
    return nbytes
