"""Reads and writes the two kinds of index slots: wide and compact.

A *wide* slot has 16 bytes, uint64[2]: a key and the word of its entry (`state`). A *compact*
slot has 8 bytes, one uint64: the row plus 1, and above it 32 bits of the hash. To compare
keys, the key in the row is read. Compact slots therefore cannot store keys without a row. A
slot of zeros is free.

numba compiles loops for one kind, which it recognizes by the number of dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numba.extending
import numpy as np

from placer.tables.sparse.hashing import U64, home_of, home_of_tag, mix
from placer.tables.sparse.intrinsics import prefetch
from placer.tables.sparse.state import Array, row_of

_ROW: Final = U64(0xFFFFFFFF)
_TAG: Final = U64(32)
_overload: Any = numba.extending.overload


def _by_kind(wide: Callable[..., Any], compact: Callable[..., Any]) -> Any:
    """Return a compiled function that calls `wide` or `compact`, as its first argument requires."""

    def function(*args: Any) -> Any:
        raise NotImplementedError("this function works only in compiled code")

    def choose(slots: Any, *rest: Any) -> Any:
        return wide if slots.ndim == 2 else compact

    _overload(function, strict=False, inline="always")(choose)
    return function


def _wide_is_free(slots: Array, slot: Any) -> Any:
    return slots[slot, 1] == U64(0)


def _compact_is_free(slots: Array, slot: Any) -> Any:
    return slots[slot] == U64(0)


def _wide_has(slots: Array, slot: Any, meta: Array, key: Any, tag: Any) -> Any:
    return slots[slot, 0] == key


def _compact_has(slots: Array, slot: Any, meta: Array, key: Any, tag: Any) -> Any:
    found = slots[slot]
    return found >> _TAG == tag and meta[(found & _ROW) - U64(1), 0] == key


def _wide_row(slots: Array, slot: Any) -> Any:
    return row_of(slots[slot, 1])


def _compact_row(slots: Array, slot: Any) -> Any:
    return np.int64(slots[slot] & _ROW) - 1


def _wide_set(slots: Array, slot: Any, key: Any, tag: Any, word: Any) -> None:
    slots[slot, 0] = key
    slots[slot, 1] = word


def _compact_set(slots: Array, slot: Any, key: Any, tag: Any, word: Any) -> None:
    slots[slot] = (tag << _TAG) | U64(row_of(word) + 1)


def _wide_home(slots: Array, slot: Any, bits: Any, capacity: Any) -> Any:
    return home_of(mix(slots[slot, 0]), bits, capacity)


def _compact_home(slots: Array, slot: Any, bits: Any, capacity: Any) -> Any:
    return home_of_tag(slots[slot] >> _TAG, capacity)


def _wide_move(slots: Array, slot: Any, to: Any) -> None:
    slots[to, 0] = slots[slot, 0]
    slots[to, 1] = slots[slot, 1]


def _compact_move(slots: Array, slot: Any, to: Any) -> None:
    slots[to] = slots[slot]


def _wide_clear(slots: Array, slot: Any) -> None:
    slots[slot, 0] = U64(0)
    slots[slot, 1] = U64(0)


def _compact_clear(slots: Array, slot: Any) -> None:
    slots[slot] = U64(0)


def _wide_prefetch_row(slots: Array, slot: Any, meta: Array) -> None:
    pass


def _compact_prefetch_row(slots: Array, slot: Any, meta: Array) -> None:
    row = slots[slot] & _ROW
    if row:
        prefetch(U64(meta.ctypes.data) + U64(16) * (row - U64(1)))


is_free = _by_kind(_wide_is_free, _compact_is_free)
"""`is_free(slots, slot)` returns whether a slot is free."""
has_key = _by_kind(_wide_has, _compact_has)
"""`has_key(slots, slot, meta, key, tag)` returns whether a slot contains `key`, whose `tag_of`
is `tag`. A compact slot must not be free."""
row_at = _by_kind(_wide_row, _compact_row)
"""`row_at(slots, slot)` returns the row of a slot, ABSENT or COUNTED."""
set_entry = _by_kind(_wide_set, _compact_set)
"""`set_entry(slots, slot, key, tag, word)` writes an entry. For compact slots, the word must
contain a row."""
home_at = _by_kind(_wide_home, _compact_home)
"""`home_at(slots, slot, bits, capacity)` returns the slot where the search for the key of
this slot starts."""
move_entry = _by_kind(_wide_move, _compact_move)
"""`move_entry(slots, slot, to)` copies a slot."""
clear = _by_kind(_wide_clear, _compact_clear)
"""`clear(slots, slot)` frees a slot."""
prefetch_row = _by_kind(_wide_prefetch_row, _compact_prefetch_row)
"""`prefetch_row(slots, slot, meta)` prefetches the part of a row that `has_key` reads."""
