"""Hashes keys: the high bits of the hash choose the partition, the next bits the slot.

Neighboring keys and keys with equal residues are common, and the hash spreads them evenly. The
partition of a key depends only on the key.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba.extending import register_jitable

U64: Final = np.uint64


@register_jitable
def mix(key: Any) -> Any:
    """Return the 64-bit hash of a uint64 key, or of each key of an array.

    It is a bijection: the finalizer of SplitMix64 (Steele, Lea and Flood 2014).
    """
    key = (key ^ (key >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> U64(27))) * U64(0x94D049BB133111EB)
    return key ^ (key >> U64(31))


@register_jitable
def partition_of(hashed: Any, bits: Any) -> Any:
    """Return the partition of a hashed key among 2**bits partitions; 1 <= bits <= 16."""
    return hashed >> (U64(64) - bits)


@register_jitable
def tag_of(hashed: Any, bits: Any) -> Any:
    """Return the 32 bits of a hash after the bits that choose the partition."""
    return (hashed << bits) >> U64(32)


@register_jitable
def home_of_tag(tag: Any, capacity: Any) -> Any:
    """Return the slot where the search for a key starts, among `capacity` slots.

    The slot grows with the tag. Entries therefore keep their order when a partition grows.
    """
    return (tag * capacity) >> U64(32)


@register_jitable
def home_of(hashed: Any, bits: Any, capacity: Any) -> Any:
    """Return the slot where the search for a key starts, given its whole hash."""
    return home_of_tag(tag_of(hashed, bits), capacity)
