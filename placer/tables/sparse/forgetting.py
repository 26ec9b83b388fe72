"""Finds the keys that a table forgets, in sweeps over some partitions in each step."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable

from placer.plan.settings.sparse.table import Forgetting, Scoring
from placer.tables.machine_code import compiled
from placer.tables.sparse.hashing import U64
from placer.tables.sparse.index import delete_entry, prefetch_entry
from placer.tables.sparse.intrinsics import AHEAD
from placer.tables.sparse.kept_rows import Kept, keep_word
from placer.tables.sparse.row_memory import free_row
from placer.tables.sparse.state import (
    CHUNK,
    NONE,
    SEEN_MASK,
    Array,
    State,
    row_of,
    score_of,
    seen_of,
    word_of_score,
)


class Limits(NamedTuple):
    """The limits of a sweep as numbers. A limit that is not set has a value without effect.

    Attributes:
        steps: forget rows that were not seen for more than this many steps; -1 if not set.
        seconds: the same in seconds.
        score: forget keys with a lower score.
        norm: forget rows with a smaller squared norm.
        decay: the factor for all scores in a sweep.
        has_scores: whether entries of keys without a row contain a score.
        by_steps: whether entries of keys without a row contain the step in which they were
            last seen; otherwise the second.
    """

    steps: int
    seconds: int
    score: float
    norm: float
    decay: float
    has_scores: bool
    by_steps: bool

    @classmethod
    def of(cls, forget: Forgetting, score: Scoring | None, *, scored: bool) -> Limits:
        """Return the limits of a table.

        Args:
            forget: the settings for forgetting.
            score: the settings for scores, if rows have scores.
            scored: whether the table admits keys by score.
        """
        unseen = forget.unseen_seconds
        return cls(
            steps=-1 if forget.unseen_steps is None else forget.unseen_steps,
            seconds=-1 if unseen is None else unseen,
            score=-np.inf if forget.score_below is None else forget.score_below,
            norm=0.0 if forget.norm_below is None else forget.norm_below**2,
            decay=1.0 if score is None else score.decay,
            has_scores=scored,
            by_steps=unseen is None or forget.unseen_steps is not None,
        )

    @property
    def is_active(self) -> bool:
        """Whether a sweep has an effect."""
        return (
            self.steps >= 0
            or self.seconds >= 0
            or self.score > -np.inf
            or self.norm > 0
            or self.decay != 1
        )


def partitions_of_step(step: int, every: int, partitions: int) -> range:
    """Return the partitions that a sweep visits in a step."""
    turn = step % every
    return range(partitions * turn // every, partitions * (turn + 1) // every)


@register_jitable
def _passed(now: Any, seen: Any, mask: Any) -> Any:
    """Return `now - seen`, where `seen` is stored modulo a power of two."""
    return np.int64((U64(now) - U64(seen)) & U64(mask))


@compiled
def list_rows(state: State, partition: Any, rows: Array) -> Any:
    """Write the rows of a partition to `rows` (int64), and return their number."""
    count = 0
    chunk = state.partitions[partition].chunk
    while chunk != NONE:
        for row in range(chunk * CHUNK, (chunk + 1) * CHUNK):
            if state.meta[row, 1] != U64(0):
                rows[count] = row
                count += 1
        chunk = state.chunk_before[chunk]
    return count


@compiled
def find_forgotten(
    state: State, rows: Array, step: Any, now: Any, limits: Limits, dim: Any
) -> Any:
    """Decay the scores of rows, and move rows to forget to the front of `rows`.

    `now` is the time in seconds. Returns the number of rows to forget.
    """
    count = 0
    for i in range(rows.size):
        row, gone = rows[i], False
        if state.scores.size:
            state.scores[row] *= limits.decay
            gone = state.scores[row] < limits.score
        if limits.steps >= 0:
            seen = state.meta[row, 1] & U64(0xFFFFFFFF)
            gone = gone or _passed(step, seen, 0xFFFFFFFF) > limits.steps
        if limits.seconds >= 0:
            passed = _passed(now, state.times[row], 0xFFFFFFFF)
            gone = gone or passed > limits.seconds
        if limits.norm > 0:
            total = 0.0
            for j in range(dim):
                total += np.float64(state.values[row, j]) ** 2
            gone = gone or total < limits.norm
        if gone:
            rows[count] = row
            count += 1
    return count


@compiled
def drop_rows(state: State, bits: Any, partition: Any, rows: Array) -> None:
    """Free rows of a partition and delete their entries."""
    for i in range(rows.size):
        if i + AHEAD < rows.size:
            prefetch_entry(state, bits, state.meta[rows[i + AHEAD], 0])
        delete_entry(state, bits, state.meta[rows[i], 0])
        free_row(state, state.partitions[partition], rows[i])


@compiled
def forget_entries(
    state: State,
    kept: Kept,
    bits: Any,
    partition: Any,
    step: Any,
    now: Any,
    limits: Limits,
) -> None:
    """Delete entries of keys without a row that exceed the limits."""
    own = state.partitions[partition]
    if limits.has_scores:
        for slot in range(own.start, own.start + own.capacity):
            word = state.slots[slot, 1]
            if word and row_of(word) < 0:
                keep_word(kept, partition, state.slots[slot, 0], word)
                score = np.float32(score_of(word) * limits.decay)
                state.slots[slot, 1] = word_of_score(score, seen_of(word))
    at = U64(0)
    while at < own.capacity:
        slot = own.start + at
        word = state.slots[slot, 1]
        gone = False
        if word and row_of(word) < 0:
            if limits.has_scores:
                gone = score_of(word) < limits.score
            if limits.by_steps:
                if limits.steps >= 0:
                    passed = _passed(step, seen_of(word), SEEN_MASK)
                    gone = gone or passed > limits.steps
            elif limits.seconds >= 0:
                passed = _passed(now, seen_of(word), SEEN_MASK)
                gone = gone or passed > limits.seconds
        if gone:
            keep_word(kept, partition, state.slots[slot, 0], word)
            # A later entry may move into this slot: check the slot again.
            delete_entry(state, bits, state.slots[slot, 0])
        else:
            at += U64(1)
