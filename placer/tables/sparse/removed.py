"""Records the keys whose rows a table removes, for publications."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from placer.tables.sparse.state import Array

LEAST: Final = 4096
"""So many keys are recorded even if the table has few rows."""
_PART: Final = 8
"""More removed keys than this part of the rows are too many."""


class Removed(NamedTuple):
    """The keys that were removed and have no row now.

    Attributes:
        keys: distinct keys in ascending order, uint64[n].
        is_too_many: whether keys are missing, because more than an eighth of the rows were removed.
    """

    keys: Array
    is_too_many: bool


class RemovedKeys:
    """The keys that a table has removed since they were last taken.

    Attributes:
        is_too_many: whether more keys than an eighth of the rows were removed. The keys are then
            no longer recorded.
    """

    def __init__(self) -> None:
        self._parts: list[Array] = []
        self._count = 0
        self.is_too_many = False

    @property
    def nbytes(self) -> int:
        """The memory of the keys, in bytes."""
        return 8 * self._count

    def add(self, keys: Array, rows: int) -> None:
        """Record removed keys, uint64[n], of a table that now has a number of rows."""
        if self.is_too_many or not keys.size:
            return
        self._count += keys.size
        self._parts.append(keys.copy())
        if self._count > max(LEAST, rows // _PART):
            self._parts, self._count, self.is_too_many = [], 0, True

    def take(self) -> Removed:
        """Return the distinct keys that were recorded, and forget them."""
        keys = np.unique(np.concatenate([np.empty(0, np.uint64), *self._parts]))
        taken = Removed(keys, self.is_too_many)
        self._parts, self._count, self.is_too_many = [], 0, False
        return taken
