"""The index of a table: maps keys to entries by open addressing with linear probing.

An entry has 16 or 8 bytes (`slots`), so most searches touch only one cache line of the index.
Deleting an entry moves the entries behind it into the gap; there are no tombstones. When more than MAX_LOAD
of a partition's slots are used, this partition grows by the factor GROWTH.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba.extending import register_jitable

from placer.plan.settings.sparse.row_bytes import GROWTH, MAX_LOAD, MIN_SLOTS
from placer.tables.machine_code import compiled
from placer.tables.sparse.hashing import (
    U64,
    home_of,
    home_of_tag,
    mix,
    partition_of,
    tag_of,
)
from placer.tables.sparse.intrinsics import AHEAD, prefetch
from placer.tables.sparse.row_memory import give_back
from placer.tables.sparse.slots import (
    clear,
    has_key,
    home_at,
    is_free,
    move_entry,
    prefetch_row,
    row_at,
    set_entry,
)
from placer.tables.sparse.state import Array, State

_ROWS_AHEAD: Final = AHEAD // 2
_GOLDEN: Final = (5**0.5 - 1) / 2
"""Any number of multiples of the golden ratio, modulo 1, is spread evenly."""


@register_jitable
def prefetch_entry(state: State, bits: Any, key: Any) -> None:
    hashed = mix(key)
    own = state.partitions[partition_of(hashed, bits)]
    slot = own.start + home_of(hashed, bits, own.capacity)
    prefetch(U64(state.slots.ctypes.data) + U64(state.slots.strides[0]) * slot)


@register_jitable
def prefetch_row_of(state: State, bits: Any, key: Any) -> None:
    """Prefetch the row that the search for a key will most probably read."""
    hashed = mix(key)
    own = state.partitions[partition_of(hashed, bits)]
    slot = own.start + home_of(hashed, bits, own.capacity)
    prefetch_row(state.slots, slot, state.meta)


@register_jitable
def slot_of(state: State, bits: Any, key: Any) -> Any:
    """Return the slot of a key's entry, or the free slot where the entry belongs."""
    hashed = mix(key)
    own = state.partitions[partition_of(hashed, bits)]
    start, capacity = own.start, own.capacity
    tag = tag_of(hashed, bits)
    at = home_of_tag(tag, capacity)
    while True:
        slot = start + at
        if is_free(state.slots, slot) or has_key(
            state.slots, slot, state.meta, key, tag
        ):
            return slot
        at += U64(1)
        if at == capacity:
            at = U64(0)


@compiled
def find_rows(
    state: State, bits: Any, first: Any, count: Any, keys: Array, rows: Array
) -> Any:
    """Write each key's row, ABSENT or COUNTED to `rows` (int64). Return the number of keys outside
    the `count` partitions from `first` on.
    """
    others = 0
    for i in range(min(AHEAD, keys.size)):
        prefetch_entry(state, bits, keys[i])
    for i in range(keys.size):
        if i + AHEAD < keys.size:
            prefetch_entry(state, bits, keys[i + AHEAD])
        if i + _ROWS_AHEAD < keys.size:
            prefetch_row_of(state, bits, keys[i + _ROWS_AHEAD])
        others += partition_of(mix(keys[i]), bits) - first >= count
        rows[i] = row_at(state.slots, slot_of(state, bits, keys[i]))
    return others


@compiled
def set_words(state: State, bits: Any, keys: Array, words: Array) -> None:
    """Write the words of entries that are not 0. The index must have enough free slots."""
    for i in range(keys.size):
        if i + AHEAD < keys.size and words[i + AHEAD]:
            prefetch_entry(state, bits, keys[i + AHEAD])
        if words[i]:
            slot = slot_of(state, bits, keys[i])
            hashed = mix(keys[i])
            is_new = is_free(state.slots, slot)
            state.partitions[partition_of(hashed, bits)].entries += is_new
            set_entry(state.slots, slot, keys[i], tag_of(hashed, bits), words[i])


@compiled
def read_words(state: State, bits: Any, keys: Array, words: Array) -> None:
    """Write the word of each key's entry to `words` (uint64); 0 for keys without an entry.

    The slots must be wide.
    """
    for i in range(keys.size):
        words[i] = state.slots[slot_of(state, bits, keys[i]), 1]


@register_jitable
def delete_entry(state: State, bits: Any, key: Any) -> None:
    """Delete the entry of a key. The key must have an entry."""
    own = state.partitions[partition_of(mix(key), bits)]
    start, capacity = own.start, own.capacity
    hole = slot_of(state, bits, key) - start
    at = hole
    while True:
        at += U64(1)
        if at == capacity:
            at = U64(0)
        if is_free(state.slots, start + at):
            break
        home = home_at(state.slots, start + at, bits, capacity)
        # The distances of the entry from its home and from the hole.
        behind_home = at - home if at >= home else at + capacity - home
        behind_hole = at - hole if at >= hole else at + capacity - hole
        if behind_home >= behind_hole:
            move_entry(state.slots, start + at, start + hole)
            hole = at
    clear(state.slots, start + hole)
    own.entries -= 1


@compiled
def count_keys(bits: Any, keys: Array, which: Array, counts: Array) -> None:
    """Count the keys selected by `which` (bool) per partition, and add to `counts` (int64)."""
    for i in range(keys.size):
        if which[i]:
            counts[partition_of(mix(keys[i]), bits)] += 1


@compiled
def _move_entries(
    state: State, bits: Any, start: Any, capacity: Any, new_start: Any, new: Any
) -> None:
    # Slots are in the order of hashes, so the writes are nearly in order as well.
    for slot in range(start, start + capacity):
        if not is_free(state.slots, slot):
            at = home_at(state.slots, slot, bits, new)
            while not is_free(state.slots, new_start + at):
                at += U64(1)
                if at == new:
                    at = U64(0)
            move_entry(state.slots, slot, new_start + at)


class SlotSpace:
    """Allocates the slots of partitions. A partition that grows moves to new slots."""

    def __init__(self, state: State, bits: int) -> None:
        self._state, self._bits = state, np.uint64(bits)
        self._used = 0
        self._slot = int(state.slots[0].nbytes)
        for partition in range(state.partitions.size):
            self._grow(partition, MIN_SLOTS)

    def more_nbytes(self, more: Array) -> int:
        """Return an upper bound of the additional bytes that `make_room` needs."""
        growing, capacities = self._growing(more)
        if not growing.size:
            return 0
        before = self._state.partitions["capacity"][growing].astype(np.int64)
        return self._slot * int((capacities - before).sum() + before.max())

    def make_room(self, more: Array) -> None:
        """Grow partitions until each has room for `more` entries (int64[partitions])."""
        for partition, capacity in zip(*self._growing(more), strict=True):
            self._grow(int(partition), int(capacity))

    def _growing(self, more: Array) -> tuple[Array, Array]:
        """Return the partitions that must grow, and their new numbers of slots.

        Each partition has a different initial size. Otherwise all partitions would grow in
        the same step, because they have similar numbers of entries.
        """
        partitions = self._state.partitions
        capacity = partitions["capacity"].astype(np.int64)
        wanted = partitions["entries"] + more
        growing = np.flatnonzero((wanted > MAX_LOAD * capacity) & (more > 0))
        least = np.maximum(wanted[growing] / MAX_LOAD + 1, capacity[growing] + 1)
        own = MIN_SLOTS * GROWTH ** (growing * _GOLDEN % 1)
        steps = np.ceil(np.log(least / own) / np.log(GROWTH))
        slots = np.maximum(own * GROWTH**steps, least)
        return growing, -(-slots // MIN_SLOTS).astype(np.int64) * MIN_SLOTS

    def _grow(self, partition: int, new: int) -> None:
        own = self._state.partitions[partition]
        start, capacity = int(own["start"]), int(own["capacity"])
        new_start = self._used
        self._used += new
        assert self._used <= len(self._state.slots)
        args = (U64(each) for each in (start, capacity, new_start, new))
        _move_entries(self._state, self._bits, *args)
        own["start"], own["capacity"] = new_start, new
        give_back(self._state.slots, start, start + capacity)

    @property
    def nbytes(self) -> int:
        """The bytes of all slots."""
        return self._slot * int(self._state.partitions["capacity"].sum())
