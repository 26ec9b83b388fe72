"""The index of a table: from a key to its entry, by open addressing with linear probing.

An entry is 16 bytes, or 8 (`slots`), so that a search touches one cache line of the index in
most cases. Entries are deleted by moving those behind them forward, without tombstones. At most MAX_LOAD of a
partition's slots are used; then it alone gets GROWTH times as many.
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
"""Multiples of the golden ratio, modulo 1, are spread evenly, however many there are."""


@register_jitable
def prefetch_entry(state: State, bits: Any, key: Any) -> None:
    hashed = mix(key)
    own = state.partitions[partition_of(hashed, bits)]
    slot = own.start + home_of(hashed, bits, own.capacity)
    prefetch(U64(state.slots.ctypes.data) + U64(state.slots.strides[0]) * slot)


@register_jitable
def prefetch_row_of(state: State, bits: Any, key: Any) -> None:
    """Begin to load what the search reads of the row that is most probably that of the
    key."""
    hashed = mix(key)
    own = state.partitions[partition_of(hashed, bits)]
    slot = own.start + home_of(hashed, bits, own.capacity)
    prefetch_row(state.slots, slot, state.meta)


@register_jitable
def slot_of(state: State, bits: Any, key: Any) -> Any:
    """Return the slot of a key's entry, or the free one where it belongs."""
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
    """Write the row of each key to `rows` (int64), or ABSENT or COUNTED; return how many
    keys are not of the `count` partitions from `first` on (uint64)."""
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
    """Write the words of entries, where they are not 0; there is room for new ones."""
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
    """Write the word of the entry of each key, of wide slots, to `words` (uint64), and 0
    for none."""
    for i in range(keys.size):
        words[i] = state.slots[slot_of(state, bits, keys[i]), 1]


@register_jitable
def delete_entry(state: State, bits: Any, key: Any) -> None:
    """Delete the entry of a key, which has one."""
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
        # How far the entry is behind its home, and how far behind the hole.
        behind_home = at - home if at >= home else at + capacity - home
        behind_hole = at - hole if at >= hole else at + capacity - hole
        if behind_home >= behind_hole:
            move_entry(state.slots, start + at, start + hole)
            hole = at
    clear(state.slots, start + hole)
    own.entries -= 1


@compiled
def count_keys(bits: Any, keys: Array, which: Array, counts: Array) -> None:
    """Add the number of keys of each partition, of those that `which` (bool) says, to
    `counts` (int64)."""
    for i in range(keys.size):
        if which[i]:
            counts[partition_of(mix(keys[i]), bits)] += 1


@compiled
def _move_entries(
    state: State, bits: Any, start: Any, capacity: Any, new_start: Any, new: Any
) -> None:
    # In the order of the slots, and so of the hashes: the writes are nearly in order, too.
    for slot in range(start, start + capacity):
        if not is_free(state.slots, slot):
            at = home_at(state.slots, slot, bits, new)
            while not is_free(state.slots, new_start + at):
                at += U64(1)
                if at == new:
                    at = U64(0)
            move_entry(state.slots, slot, new_start + at)


class SlotSpace:
    """Where the slots of partitions are: each time that one grows it gets new ones."""

    def __init__(self, state: State, bits: int) -> None:
        self._state, self._bits = state, np.uint64(bits)
        self._used = 0
        self._slot = int(state.slots[0].nbytes)
        for partition in range(state.partitions.size):
            self._grow(partition, MIN_SLOTS)

    def more_nbytes(self, more: Array) -> int:
        """Return the bytes that `make_room` needs at most, besides those in use."""
        growing, capacities = self._growing(more)
        if not growing.size:
            return 0
        before = self._state.partitions["capacity"][growing].astype(np.int64)
        return self._slot * int((capacities - before).sum() + before.max())

    def make_room(self, more: Array) -> None:
        """Let partitions grow until they have room for so many more entries each (int64,
        of shape [partitions])."""
        for partition, capacity in zip(*self._growing(more), strict=True):
            self._grow(int(partition), int(capacity))

    def _growing(self, more: Array) -> tuple[Array, Array]:
        """Return the partitions that have to grow, and how many slots they will have.

        The sizes of each partition are those of the others times a factor of its own, so
        that few of them grow in the same step, although all have as many entries.
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
