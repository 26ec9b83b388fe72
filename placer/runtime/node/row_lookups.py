"""Lookups of rows of sparse tables; `Node` documents the calls.

A node requests the rows of its keys, and the nodes that hold the rows send them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from placer.channel.interface import Array, Key
from placer.runtime.asynchronous.asked_rows import AskedRows
from placer.runtime.exchange.row_exchange import AskedKeys, PartsOfRows, RowExchange
from placer.runtime.exchange.worker_messages import WorkerMessage
from placer.runtime.node.collected_keys import CollectedKeys
from placer.runtime.node.position import Position
from placer.runtime.node.tables_of_keys import TablesOfKeys
from placer.tables.sparse.batch_keys import BatchKeys
from placer.tables.sparse.table import SparseTable


@dataclass(slots=True)
class RowLookups:
    """Requests rows and sends requested rows.

    Attributes:
        position: the current step of the node.
        exchange: the node's side of edges that carry rows by key.
        tables: the sparse tables whose partitions the node holds, by name.
        keys: collects the keys that the node looks up.
        ends: the `WorkerEnd` of each asynchronous table, by edge number.
    """

    position: Position
    exchange: RowExchange
    tables: Mapping[str, SparseTable]
    keys: CollectedKeys
    ends: Mapping[int, AskedRows] = field(default_factory=dict)
    _sent_ahead: dict[int, int] = field(default_factory=dict, init=False)
    """The step of the keys that were sent ahead on each edge."""
    _asked_ahead: dict[int, tuple[AskedKeys, ...]] = field(
        default_factory=dict, init=False
    )
    """The keys that nodes have requested for the next step, by edge."""

    def send_keys(self, edge: int, keys: Sequence[BatchKeys]) -> None:
        """Request the rows of keys, unless `send_keys_ahead` has done so."""
        position = self.position
        if self._sent_ahead.get(edge) == position.step and not position.evaluation:
            return
        self._send_keys(self._key(edge), keys)

    def send_keys_ahead(self, edge: int, next_rows: Callable[[str], Array]) -> None:
        """Request the rows of the next step, if there is a next step. `next_rows`
        returns the next step's rows of an input."""
        end, step = self.ends.get(edge), self.position.step + 1
        if self.position.is_last or (end is not None and end.mode.waits_for_own):
            return
        keys = self.keys.collect_ahead(self.exchange.edges[edge], next_rows)
        self._sent_ahead[edge] = step
        self._send_keys(self._key(edge)._replace(step=step), keys)

    def drain(self) -> None:
        """Forget which keys of asynchronous tables were sent ahead: their rows are dropped."""
        for edge in self.ends:
            self._sent_ahead.pop(edge, None)

    def _send_keys(self, key: Key, keys: Sequence[BatchKeys]) -> None:
        end = self.ends.get(key.edge)
        if end is not None:
            end.send_keys(key.step, keys)
        else:
            self.exchange.send_keys(key, keys)

    def receive_keys_ahead(self, edge: int) -> None:
        """Wait for the keys requested for the next step, if any, and locate their rows."""
        if self.position.is_last:
            return
        key = self._key(edge)._replace(step=self.position.step + 1)
        self._asked_ahead[edge] = tuple(
            replace(
                asked,
                found=tuple(self._held(names).find(part.keys) for part in asked.parts),
            )
            for names, asked in zip(
                self.exchange.tables_of(edge),
                self.exchange.receive_keys(key),
                strict=True,
            )
        )

    def receive_keys(self, edge: int) -> tuple[AskedKeys, ...]:
        """Wait for requested keys, unless `receive_keys_ahead` has received them."""
        ahead = self._asked_ahead.pop(edge, None)
        return ahead or self.exchange.receive_keys(self._key(edge))

    @staticmethod
    def of_message(message: WorkerMessage) -> tuple[AskedKeys, ...]:
        return tuple(AskedKeys((part,)) for part in message.keys)

    def look_up(
        self, tables: tuple[str, ...], keys: BatchKeys | AskedKeys
    ) -> list[Array] | list[PartsOfRows]:
        """Return the rows of requested keys in each table, or of this node's own keys followed
        by zeros."""
        held = self._held(tables)
        if isinstance(keys, AskedKeys):
            parts = []
            for part, found in zip_longest(keys.parts, keys.found):
                if tables != part.tables:
                    found = None  # it has the rows of all tables over these keys
                rows = self._empty(held, part.keys.size)
                parts.append(held.read(part.keys, rows, found))
            return [PartsOfRows(each) for each in zip(*parts, strict=True)]
        self.keys.choose_sizes()
        rows, count = self._empty(held, keys.size), keys.keys.size
        held.read(keys.keys, [array[:count] for array in rows])
        for array in rows:
            array[count:] = 0
        return rows

    def _held(self, names: tuple[str, ...]) -> TablesOfKeys:
        return TablesOfKeys([self.tables[name] for name in names])

    def _empty(self, held: TablesOfKeys, count: int) -> list[Array]:
        """Return an array for the rows of each table."""
        return [
            self.exchange.arena.allocate(each.dtype, (count, each.settings.dim))
            for each in held.tables
        ]

    def send_rows(self, edge: int, rows: Sequence[PartsOfRows]) -> None:
        self.exchange.send_rows(self._key(edge), rows)

    def receive_rows(self, edge: int, keys: Sequence[BatchKeys]) -> tuple[Array, ...]:
        """Wait for the rows of keys; rows of zeros follow them."""
        self.keys.choose_sizes()
        end = self.ends.get(edge)
        if end is not None:
            return end.receive_rows(keys)
        return self.exchange.receive_rows(self._key(edge), keys)

    def _key(self, edge: int) -> Key:
        return self.position.key(self.exchange.edges[edge])
