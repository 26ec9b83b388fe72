"""How many bytes a sparse table takes: for a row, and for many.

The tables (`placer.tables.sparse`) store rows with these constants; the compiler and
reports count their bytes without a table.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from placer.place.types import ITEM_BYTES
from placer.plan.settings.sparse.table import Bloom, SparseTable
from placer.plan.settings.training.optimizers import read_rule

LINE: Final = 64
"""Bytes of a cache line."""
CHUNK: Final = 256
"""Rows that a partition takes from the store at a time."""
METADATA: Final = 16
"""Bytes of the key of a row, when it was last seen and how often."""
NUMBER: Final = 4
"""Bytes of the number of updates of a row, of its time in seconds, and of its score."""
ENTRY: Final = {"wide": 16, "compact": 8}
"""Bytes of a slot of each kind of index."""
MAX_LOAD: Final = 0.7
"""The part of a partition's slots that is used at most."""
GROWTH: Final = 1.5
"""How many times as many slots a partition gets that has no room left."""
MIN_SLOTS: Final = 16
"""Slots of a partition at least; a multiple of those in a cache line."""


def row_length(count: int, itemsize: int) -> int:
    """Return `count` elements, padded so that no row shares more cache lines than it has
    to: whole lines, or a power of two that divides one."""
    line = LINE // itemsize
    if count >= line:
        return -(-count // line) * line
    return 1 << max(0, (count - 1).bit_length())


@dataclass(frozen=True, slots=True)
class RowBytes:
    """The bytes of one row of a sparse table.

    Attributes:
        values: those of its values.
        slots: those of the slots that the rule keeps for each element.
        padding: those between the slots and the next row.
        metadata: those of its key, of when it was last seen and how often.
        numbers: those of what is kept once for the row, by what it is.
        index: those of its entry in the index, at least, right before the index grows,
            and at most, right after that.
    """

    values: int
    slots: int
    padding: int
    metadata: int
    numbers: dict[str, int]
    index: tuple[int, int]

    @property
    def stored(self) -> int:
        """The bytes of a row without its entry in the index."""
        row = self.values + self.slots + self.padding
        return row + self.metadata + sum(self.numbers.values())

    @property
    def total(self) -> tuple[int, int]:
        """The bytes of a row, at least and at most."""
        low, high = self.index
        return self.stored + low, self.stored + high


def row_bytes(settings: SparseTable, dtype: str) -> RowBytes:
    """Return the bytes of a row of a table whose values are of `dtype`."""
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
    """Return the bytes that a node needs at least for its part of a table.

    Args:
        settings: the settings of the table.
        dtype: the dtype of its values.
        rows: the rows of the whole table, spread evenly over its partitions.
        held: the partitions that the node has.
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
