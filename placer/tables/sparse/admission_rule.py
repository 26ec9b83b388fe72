"""Decides which keys of a push are given a row."""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

import numpy as np

from placer.errors import RunError
from placer.plan.settings.sparse.table import Always, Bloom, Count, Probability, Score
from placer.plan.settings.sparse.table import SparseTable as Settings
from placer.tables.sparse import admission_loops
from placer.tables.sparse.hashing import U64
from placer.tables.sparse.state import Array
from placer.tables.sparse.storage import Storage


class Admitted(NamedTuple):
    """The decision about the keys of a push.

    Attributes:
        new: bool[n]: whether the key is given a row.
        words: uint64[n]: the word of a refused key's index entry; 0 for no entry.
        estimates: int64[n]: the occurrences of the key according to the Bloom filters.
    """

    new: Array
    words: Array
    estimates: Array


class AdmissionRule:
    """The admission method of a table.

    Args:
        settings: the settings of the table.
        seed: the seed of the model.

    Attributes:
        counts: whether entries of the index count keys without a row.

    Raises:
        RunError: if the method counts keys in the index but the index is compact.
    """

    def __init__(self, settings: Settings, seed: int) -> None:
        self._admit = settings.admit
        self._salt = sha256(f"{seed}/{settings.name}".encode()).digest()
        self.counts = isinstance(settings.admit, Count | Score)
        if self.counts and settings.index == "compact":
            raise RunError(
                f"table {settings.name}: a compact index cannot count keys without a row"
            )

    def admit(
        self,
        storage: Storage,
        keys: Array,
        rows: Array,
        counts: Array,
        scores: Array,
        seen: Array,
        draw: int,
    ) -> Admitted:
        """Decide which keys without a row to admit. The table itself does not change.

        Args:
            storage: the storage of the table.
            keys: uint64[n].
            rows: int64[n]; below 0 for keys without a row.
            counts: int64[n]: the occurrences. Set to the total count for admitted keys.
            scores: float32[n]: the scores. Set to the total score for admitted keys.
            seen: uint32[n]: the step or second in which the keys are seen now.
            draw: the number of the draw, for admission by chance.
        """
        admit, state, bits = self._admit, storage.state, storage.bits
        new, words = np.zeros(keys.size, np.bool_), np.zeros(keys.size, np.uint64)
        estimates = np.zeros(keys.size, np.int64)
        match admit:
            case Always():
                new = rows < 0
            case Count():
                admission_loops.admit_counted(
                    state, bits, keys, rows, counts, admit.n, seen, words, new
                )
            case Score():
                least = np.float32(admit.least)
                admission_loops.admit_scored(
                    state, bits, keys, rows, scores, least, seen, words, new
                )
            case Bloom():
                admission_loops.admit_filtered(
                    bits, keys, rows, counts, admit.n, storage.filters, estimates, new
                )
            case Probability():
                digest = sha256(self._salt + draw.to_bytes(8, "little")).digest()
                salt = U64(int.from_bytes(digest[:8], "little"))
                admission_loops.admit_by_chance(keys, rows, counts, admit.p, salt, new)
        return Admitted(new, words, estimates)

    def count_refused(
        self, storage: Storage, keys: Array, rows: Array, estimates: Array
    ) -> None:
        """Count the keys that still have no row, if the table uses Bloom filters."""
        if storage.filters.size:
            admission_loops.count_refused(
                storage.kept, storage.bits, keys, rows, estimates, storage.filters
            )
