"""XXH64, the 64-bit hash of the xxHash family, over ranges of an array of bytes.

The algorithm follows the xxHash specification, version 0.8 (Collet 2023). This module
imports numba, so it is imported only when a hash is needed.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import numba
import numba.types
import numpy as np
import numpy.typing as npt
from numba.extending import register_jitable

from placer.system.caches.machine_code import compile_function, kernels_folder

Keys = npt.NDArray[np.uint64]

types: Any = numba.types

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)


def hash_ranges(
    data: npt.NDArray[np.uint8],
    offsets: npt.NDArray[Any],
    seed: int,
    *,
    empty: int | None = None,
    trims: bool = False,
) -> Keys:
    """Return the XXH64 of each range of an array of bytes.

    Args:
        data: the bytes, uint8[bytes].
        offsets: item i is the range from `offsets[i]` to `offsets[i + 1]`: int32[n + 1]
            or int64[n + 1].
        seed: the seed, from 0 to 2**64 - 1.
        empty: the result for an empty range. Default: its hash.
        trims: if True, ignore ASCII whitespace at both ends of a range.

    Returns:
        uint64[n].
    """
    keys = np.empty(len(offsets) - 1, np.uint64)
    of_empty = empty is not None, np.uint64(empty or 0)
    compiled()(data, offsets, np.uint64(seed), trims, *of_empty, keys)
    return keys


def hash_rows(rows: Keys, seed: int) -> Keys:
    """Return the XXH64 of each row of numbers, each as 8 little-endian bytes.

    Args:
        rows: uint64[n, m].
        seed: the seed, from 0 to 2**64 - 1.

    Returns:
        uint64[n].
    """
    keys = np.empty(len(rows), np.uint64)
    compiled_rows()(np.ascontiguousarray(rows), np.uint64(seed), keys)
    return keys


@lru_cache
def hash_bytes(data: bytes, seed: int) -> int:
    """Return the XXH64 of bytes. `seed` is from 0 to 2**64 - 1."""
    offsets = np.array([0, len(data)], np.int64)
    return int(hash_ranges(np.frombuffer(data, np.uint8), offsets, seed)[0])


@cache
def compiled() -> Any:
    """Return the loop of `hash_ranges` as machine code."""
    signatures = [
        types.void(
            types.Array(types.uint8, 1, "C", readonly=True),
            types.Array(offset, 1, "C", readonly=True),
            types.uint64,
            types.boolean,
            types.boolean,
            types.uint64,
            types.Array(types.uint64, 1, "C"),
        )
        for offset in (types.int32, types.int64)
    ]
    return compile_function(_hash_all, signatures, kernels_folder("xxh64"))


@cache
def compiled_rows() -> Any:
    """Return the loop of `hash_rows` as machine code."""
    signature = types.void(
        types.Array(types.uint64, 2, "C", readonly=True),
        types.uint64,
        types.Array(types.uint64, 1, "C"),
    )
    return compile_function(_hash_all_rows, [signature], kernels_folder("xxh64"))


# All numbers are uint64: numba would convert a uint64 and an int64 to float64.


@register_jitable
def _rotate(x: Any, bits: int) -> Any:
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


@register_jitable
def _word(data: Any, at: int) -> Any:
    """Load the 8 bytes at a position as a little-endian number."""
    word = np.uint64(data[at])
    for i in range(1, 8):
        word |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return word


@register_jitable
def _half_word(data: Any, at: int) -> Any:
    word = np.uint64(data[at])
    for i in range(1, 4):
        word |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return word


@register_jitable
def _round(accumulator: Any, word: Any) -> Any:
    return _rotate(accumulator + word * _P2, 31) * _P1


@register_jitable
def _merge(key: Any, accumulator: Any) -> Any:
    return (key ^ _round(np.uint64(0), accumulator)) * _P1 + _P4


@register_jitable
def _finish(key: Any) -> Any:
    key ^= key >> np.uint64(33)
    key *= _P2
    key ^= key >> np.uint64(29)
    key *= _P3
    return key ^ (key >> np.uint64(32))


@register_jitable
def _lanes(seed: Any) -> Any:
    return seed + _P1 + _P2, seed + _P2, seed, seed - _P1


@register_jitable
def _join(a: Any, b: Any, c: Any, d: Any) -> Any:
    key = _rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18)
    return _merge(_merge(_merge(_merge(key, a), b), c), d)


@register_jitable
def _add_word(key: Any, word: Any) -> Any:
    return _rotate(key ^ _round(np.uint64(0), word), 27) * _P1 + _P4


@register_jitable
def _hash(data: Any, at: Any, end: Any, seed: Any) -> Any:
    key, size = seed + _P5, np.uint64(end - at)
    if end - at >= 32:
        a, b, c, d = _lanes(seed)
        while at + 32 <= end:
            a = _round(a, _word(data, at))
            b = _round(b, _word(data, at + 8))
            c = _round(c, _word(data, at + 16))
            d = _round(d, _word(data, at + 24))
            at += 32
        key = _join(a, b, c, d)
    key += size
    while at + 8 <= end:
        key = _add_word(key, _word(data, at))
        at += 8
    if at + 4 <= end:
        key = _rotate(key ^ (_half_word(data, at) * _P1), 23) * _P2 + _P3
        at += 4
    while at < end:
        key = _rotate(key ^ (np.uint64(data[at]) * _P5), 11) * _P1
        at += 1
    return _finish(key)


def _hash_all_rows(rows: Any, seed: Any, keys: Any) -> None:
    count = rows.shape[1]
    for i in range(keys.size):
        key, at = seed + _P5, 0
        if count >= 4:
            a, b, c, d = _lanes(seed)
            while at + 4 <= count:
                a = _round(a, rows[i, at])
                b = _round(b, rows[i, at + 1])
                c = _round(c, rows[i, at + 2])
                d = _round(d, rows[i, at + 3])
                at += 4
            key = _join(a, b, c, d)
        key += np.uint64(8 * count)
        while at < count:
            key = _add_word(key, rows[i, at])
            at += 1
        keys[i] = _finish(key)


@register_jitable
def _is_blank(byte: Any) -> Any:
    return byte == 32 or 9 <= byte <= 13


def _hash_all(
    data: Any,
    offsets: Any,
    seed: Any,
    trims: bool,
    has_empty: bool,
    empty: Any,
    keys: Any,
) -> None:
    for i in range(keys.size):
        at, end = np.int64(offsets[i]), np.int64(offsets[i + 1])
        if trims:
            while at < end and _is_blank(data[at]):
                at += 1
            while at < end and _is_blank(data[end - 1]):
                end -= 1
        is_empty = has_empty and at == end
        keys[i] = empty if is_empty else _hash(data, at, end, seed)
