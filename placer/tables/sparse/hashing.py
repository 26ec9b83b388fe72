"""The hash of a key: its high bits choose the partition, the next ones the slot.

Neighboring keys and keys that share a residue, which are common, are spread evenly; the
partition of a key depends on nothing but the key.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba.extending import register_jitable

U64: Final = np.uint64


@register_jitable
def mix(key: Any) -> Any:
    """Return the hash of a uint64 key, or of each key of an array: a bijection of 64 bits
    (the finalizer of SplitMix64: Steele, Lea and Flood 2014)."""
    key = (key ^ (key >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> U64(27))) * U64(0x94D049BB133111EB)
    return key ^ (key >> U64(31))


@register_jitable
def partition_of(hashed: Any, bits: Any) -> Any:
    """Return the partition of a hashed key, of 2**bits; bits is in 1..16."""
    return hashed >> (U64(64) - bits)


@register_jitable
def tag_of(hashed: Any, bits: Any) -> Any:
    """Return the 32 bits of a hash behind those that choose the partition."""
    return (hashed << bits) >> U64(32)


@register_jitable
def home_of_tag(tag: Any, capacity: Any) -> Any:
    """Return the slot at which the search for a key starts, of `capacity` slots of its
    partition. It grows with the hash, so that the entries of a larger partition are in the
    same order."""
    return (tag * capacity) >> U64(32)


@register_jitable
def home_of(hashed: Any, bits: Any, capacity: Any) -> Any:
    """Return the same by the whole hash."""
    return home_of_tag(tag_of(hashed, bits), capacity)
