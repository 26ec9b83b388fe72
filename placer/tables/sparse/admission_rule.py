"""Which keys of a push get a row: a table's way of admission."""

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
    """Which keys get a row (`new`, bool), the words of the entries of others (`words`,
    uint64; 0 if they need none), and how often each has occurred by the Bloom filters
    (`estimates`, int64); all of shape [n]."""

    new: Array
    words: Array
    estimates: Array


class AdmissionRule:
    """A table's way of admission.

    Args:
        settings: the settings of the table.
        seed: the seed of the model.

    Attributes:
        counts: whether keys without a row are counted in entries of the index.

    Raises:
        RunError: the index has no such entries.
    """

    def __init__(self, settings: Settings, seed: int) -> None:
        self._admit = settings.admit
        self._salt = sha256(f"{seed}/{settings.name}".encode()).digest()
        self.counts = isinstance(settings.admit, Count | Score)
        if self.counts and settings.index == "compact":
            raise RunError(
                f"table {settings.name}: a compact index has no room for the counts of keys"
                " without a row"
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
        """Decide about the keys without a row (whose row is below 0), and change nothing.

        `counts` (int64) and `scores` (float32) of admitted keys become all that they had;
        `seen` (uint32) is when keys are seen now, and `draw` the number of the draw of those
        that are admitted by chance.
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
        """Count the keys that still have no row in the Bloom filters, if there are any."""
        if storage.filters.size:
            admission_loops.count_refused(
                storage.kept, storage.bits, keys, rows, estimates, storage.filters
            )
