"""Limits the memory that the tables of a server use together."""

from __future__ import annotations

import threading


class MemoryBudget:
    """A limit on the bytes that the tables of a server use together.

    Args:
        total: the limit in bytes.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._used: dict[str, int] = {}
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """The bytes that all tables use together."""
        return sum(self._used.values())

    def take(self, table: str, nbytes: int) -> bool:
        """Change the bytes that a table uses to `nbytes`.

        Returns:
            False if the tables would exceed the limit; then nothing changes. A table can
            always use fewer bytes.
        """
        with self._lock:
            before = self._used.get(table, 0)
            if nbytes > before and self.used - before + nbytes > self.total:
                return False
            self._used[table] = nbytes
            return True

    def left_for(self, table: str) -> int:
        """Return the largest number of bytes that a table may currently use."""
        with self._lock:
            return self.total - self.used + self._used.get(table, 0)

    def describe(self) -> str:
        """Return a text with the limit and the bytes of each table, largest first."""
        with self._lock:
            used = sorted(self._used.items(), key=lambda each: -each[1])
        listed = ", ".join(f"{nbytes:,} used by {table}" for table, nbytes in used)
        return f"{self.total:,} bytes for all tables, with {listed}"
