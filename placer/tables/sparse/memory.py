"""The memory that tables may use together."""

from __future__ import annotations

import threading


class MemoryBudget:
    """A bound of the bytes that the tables of a server use together.

    Args:
        total: the bytes.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._used: dict[str, int] = {}
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """The bytes that all tables use."""
        return sum(self._used.values())

    def take(self, table: str, nbytes: int) -> bool:
        """Let a table use `nbytes` bytes in place of what it uses now. If all tables then
        used more than the bound, this changes nothing and returns False; a table can
        always use less."""
        with self._lock:
            before = self._used.get(table, 0)
            if nbytes > before and self.used - before + nbytes > self.total:
                return False
            self._used[table] = nbytes
            return True

    def left_for(self, table: str) -> int:
        """Return the bytes that a table may use in all, if no other one uses more."""
        with self._lock:
            return self.total - self.used + self._used.get(table, 0)

    def describe(self) -> str:
        """Return the bytes, and how many each table uses, the largest first."""
        with self._lock:
            used = sorted(self._used.items(), key=lambda each: -each[1])
        listed = ", ".join(f"{nbytes:,} used by {table}" for table, nbytes in used)
        return f"{self.total:,} bytes for all tables, with {listed}"
