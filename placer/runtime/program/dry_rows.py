"""Rows of sparse tables in the warm-up: zeros, and nothing is sent or changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from placer.build.plan import EdgeValue
from placer.channel.protocol import Array, Key
from placer.memory import aligned
from placer.runtime.program.row_exchange import AskedKeys, PartsOfRows, RowExchange
from placer.tables.key_sums import KeyPart
from placer.tables.sparse.batch_keys import BatchKeys
from placer.tables.sparse.found_rows import FoundRows
from placer.tables.sparse.table import Pushed, SparseTable


def dry_row_exchange(exchange: RowExchange) -> RowExchange:
    """Return an exchange that asks for nothing, and gives zeros."""
    return _DryRowExchange(
        exchange.node, exchange.channel, exchange.edges, exchange.tables
    )


class _DryRowExchange(RowExchange):
    def send_keys(self, key: Key, keys: Sequence[BatchKeys]) -> None:
        """Send nothing."""

    def receive_keys(self, key: Key) -> tuple[AskedKeys, ...]:
        edge = self.edges[key.edge]
        return tuple(
            AskedKeys((no_keys(value),) * len(edge.sources)) for value in edge.values
        )

    def send_rows(self, key: Key, rows: Sequence[PartsOfRows]) -> None:
        """Send nothing."""

    def receive_rows(self, key: Key, keys: Sequence[BatchKeys]) -> tuple[Array, ...]:
        values = self.edges[key.edge].values
        return tuple(
            aligned.zeros((each.size, int(value.shape[1])), np.dtype(value.dtype))
            for value, each in zip(values, keys, strict=True)
        )

    def send_gradients(
        self, key: Key, keys: Sequence[BatchKeys], gradients: Sequence[Array]
    ) -> None:
        """Send nothing: the gradients were computed."""

    def receive_gradients(self, key: Key) -> tuple[PartsOfRows, ...]:
        edge = self.edges[key.edge]
        return tuple(
            PartsOfRows(
                (np.empty((0, int(value.shape[1])), value.dtype),) * len(edge.sources)
            )
            for value in edge.values
        )


class FrozenRows:
    """A sparse table that stays as it is, and whose rows are zeros."""

    def __init__(self, table: SparseTable) -> None:
        self._table = table
        self.settings, self.dtype = table.settings, table.dtype

    def find(self, keys: Array) -> FoundRows:
        """Return the rows of keys."""
        return self._table.find(keys)

    def pull(self, keys: Array, out: Array, found: FoundRows | None = None) -> Array:
        """Return zeros: a lookup of the table would be counted."""
        out[...] = 0
        return out

    def push(self, keys: Array, gradients: Array, **others: Any) -> Pushed:
        """Change nothing."""
        return Pushed(updated=0, admitted=0, refused=0, evicted=0)

    def find_not_finite(self, keys: Array, gradients: Array, **others: Any) -> None:
        """Find nothing: gradients of rows of zeros need not be finite."""

    latest = 0

    def note_time(self, second: int) -> None:
        """Note nothing."""

    def forget(self, step: int, now: float) -> None:
        """Forget nothing."""


def no_keys(value: EdgeValue) -> KeyPart:
    """Return no keys of a table, with all that goes with them."""
    scores = np.empty(0, np.float32) if "scores" in value.counted else None
    times = np.empty(0, np.uint32) if "times" in value.counted else None
    return KeyPart(np.empty(0, np.uint64), np.empty(0, np.uint32), scores, times)
