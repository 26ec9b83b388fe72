"""Loops that decide which keys without a row are admitted, one loop for each method.

Depending on the method, refused keys are counted in an entry of the index, counted in a Bloom
filter, or not counted.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba.extending import register_jitable

from placer.tables.machine_code import compiled
from placer.tables.sparse.hashing import U64, mix, partition_of
from placer.tables.sparse.index import slot_of
from placer.tables.sparse.kept_rows import Kept, keep_counter
from placer.tables.sparse.state import (
    Array,
    State,
    count_of,
    later_seen,
    score_of,
    word_of_count,
    word_of_score,
)

BLOCK: Final = 64
"""The number of counters in a block of a Bloom filter, which is one cache line."""
MAX_COUNT: Final = 255
_MAX_UINT32: Final = 2**32 - 1


@compiled
def admit_counted(
    state: State,
    bits: Any,
    keys: Array,
    rows: Array,
    occurrences: Array,
    least: Any,
    seen: Array,
    words: Array,
    admitted: Array,
) -> None:
    """Count keys without a row, and admit keys that have occurred `least` times.

    Sets `admitted` (bool) for admitted keys, and their `occurrences` to the total count.
    Sets `words` to the index entries of refused keys, and to 0 for all other keys.
    """
    for i in range(keys.size):
        words[i] = U64(0)
        if rows[i] < 0:
            word = state.slots[slot_of(state, bits, keys[i]), 1]
            count = min(
                np.int64(count_of(word)) + np.int64(occurrences[i]), _MAX_UINT32
            )
            admitted[i] = count >= least
            if admitted[i]:
                occurrences[i] = count
            else:
                words[i] = word_of_count(count, later_seen(word, seen[i]))


@compiled
def admit_scored(
    state: State,
    bits: Any,
    keys: Array,
    rows: Array,
    scores: Array,
    least: Any,
    seen: Array,
    words: Array,
    admitted: Array,
) -> None:
    """Add to the scores of keys without a row, and admit keys that reach the score `least`.

    Otherwise like `admit_counted`; sets the `scores` of admitted keys to the total score.
    """
    for i in range(keys.size):
        words[i] = U64(0)
        if rows[i] < 0:
            word = state.slots[slot_of(state, bits, keys[i]), 1]
            score = np.float32(score_of(word) + scores[i])
            admitted[i] = score >= least
            if admitted[i]:
                scores[i] = score
            else:
                words[i] = word_of_score(score, later_seen(word, seen[i]))


@compiled
def admit_by_chance(
    keys: Array, rows: Array, occurrences: Array, p: Any, salt: Any, admitted: Array
) -> None:
    """Admit keys without a row with probability `p` at each occurrence.

    `salt` is a hash of the seed, the table and the number of the draw.
    """
    for i in range(keys.size):
        if rows[i] < 0:
            drawn = (mix(mix(keys[i]) ^ salt) >> U64(11)) * 2.0**-53
            admitted[i] = drawn < 1.0 - (1.0 - p) ** np.float64(occurrences[i])


@register_jitable
def _counter(hashed: Any, bits: Any, blocks: Any, probe: int) -> Any:
    """Return the index of counter `probe` (0 to 3) of a key in its partition's filter."""
    block = (((hashed << bits) >> U64(32)) * U64(blocks)) >> U64(32)
    within = (mix(hashed) >> U64(6 * probe)) & U64(BLOCK - 1)
    return block * U64(BLOCK) + within


@compiled
def admit_filtered(
    bits: Any,
    keys: Array,
    rows: Array,
    occurrences: Array,
    least: Any,
    filters: Array,
    estimates: Array,
    admitted: Array,
) -> None:
    """Admit keys without a row that have occurred `least` times by Bloom filters.

    `filters` is uint8 of shape [partitions, counters]. Writes the estimated number of
    occurrences of each key to `estimates` (int64).
    """
    blocks = filters.shape[1] // BLOCK
    for i in range(keys.size):
        if rows[i] < 0:
            hashed = mix(keys[i])
            own = filters[partition_of(hashed, bits)]
            estimate = np.int64(MAX_COUNT)
            for probe in range(4):
                counter = np.int64(own[_counter(hashed, bits, blocks, probe)])
                estimate = min(estimate, counter)
            estimates[i] = estimate + np.int64(occurrences[i])
            admitted[i] = estimates[i] >= least


@compiled
def keep_counters(
    kept: Kept, bits: Any, keys: Array, rows: Array, filters: Array
) -> None:
    """Record the counters of keys without a row before they may grow, if a save needs them."""
    blocks = filters.shape[1] // BLOCK
    for i in range(keys.size):
        if rows[i] < 0:
            hashed = mix(keys[i])
            partition = partition_of(hashed, bits)
            for probe in range(4):
                at = _counter(hashed, bits, blocks, probe)
                keep_counter(kept, partition, at, filters[partition][at])


@compiled
def count_refused(
    kept: Kept,
    bits: Any,
    keys: Array,
    rows: Array,
    estimates: Array,
    filters: Array,
) -> None:
    """Count keys without a row in Bloom filters.

    Only the smallest of a key's counters grow (conservative update: Estan and Varghese
    2002).
    """
    blocks = filters.shape[1] // BLOCK
    for i in range(keys.size):
        if rows[i] < 0:
            hashed = mix(keys[i])
            partition = partition_of(hashed, bits)
            own = filters[partition]
            count = np.uint8(min(estimates[i], MAX_COUNT))
            for probe in range(4):
                at = _counter(hashed, bits, blocks, probe)
                if own[at] < count:
                    keep_counter(kept, partition, at, own[at])
                    own[at] = count
