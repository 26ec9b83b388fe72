"""Pushes of row gradients; `Node` documents the calls.

A node sends row gradients to the nodes that hold the rows. Those nodes sum the gradients by
key and update their tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from placer.channel.interface import Array, Key
from placer.errors import RunError
from placer.place.layouts.partition import RowShard
from placer.runtime.asynchronous.asked_rows import AskedRows
from placer.runtime.exchange.row_exchange import AskedKeys, PartsOfRows, RowExchange
from placer.runtime.exchange.worker_messages import WorkerMessage, join_flat, malformed
from placer.runtime.node.learning_rates import LearningRates
from placer.runtime.node.position import Position
from placer.runtime.node.tables_of_keys import Push, RowUpdate, TablesOfKeys
from placer.tables.exact_squares import exact_squares
from placer.tables.key_sums import KeySums
from placer.tables.sparse.batch_keys import BatchKeys
from placer.tables.sparse.key_sums import sum_by_key
from placer.tables.sparse.table import Pushed, SparseTable


@dataclass(slots=True)
class RowPushes:
    """Sends row gradients and applies received row gradients.

    Attributes:
        position: the current step of the node.
        exchange: the node's side of edges that carry rows by key.
        tables: the sparse tables whose partitions the node holds, by name.
        rates: the learning rates of all tables.
        ends: the `WorkerEnd` of each asynchronous table, by edge number.
        shard: the node's share of a step's rows, for asynchronous tables.
        drops_not_finite: whether to drop gradients with NaN or infinity; otherwise they
            raise an error.
        on_warning: receives a warning.
        on_update: called after each update of a table.
    """

    position: Position
    exchange: RowExchange
    tables: Mapping[str, SparseTable]
    rates: LearningRates
    ends: Mapping[int, AskedRows] = field(default_factory=dict)
    shard: RowShard = field(default_factory=lambda: RowShard((0,), 1))
    drops_not_finite: bool = False
    on_warning: Callable[[str], None] = lambda text: None
    on_update: Callable[[], None] = lambda: None
    _has_dropped: set[str] = field(default_factory=set, init=False)
    """The tables that have dropped gradients."""
    _swept: dict[str, int] = field(default_factory=dict, init=False)
    """For each table, the last step after which it has forgotten keys."""

    def send(self, edge: int, keys_and_gradients: Sequence[Any]) -> None:
        """Send the gradients of the rows of keys to the nodes that hold the rows."""
        lookups = _by_keys(keys_and_gradients)
        keys = [each for each, of_tables in lookups for _ in of_tables]
        arrays = [np.asarray(each) for _, of_tables in lookups for each in of_tables]
        end, position = self.ends.get(edge), self.position
        if end is not None:
            rows = position.own_rows(self.shard), position.count
            end.send_gradients(position.step, rows, keys, arrays)
        else:
            self.exchange.send_gradients(self._key(edge), keys, arrays)

    def receive(self, edge: int) -> tuple[PartsOfRows, ...]:
        """Wait for the gradients of requested rows."""
        return self.exchange.receive_gradients(self._key(edge))

    def of_message(self, message: WorkerMessage) -> tuple[PartsOfRows, ...]:
        values = self.exchange.edges[message.edge].values
        (pieces,) = message.parts
        arrays = join_flat(pieces, [np.dtype(value.dtype) for value in values])
        if arrays is None:
            raise malformed(message)
        found = []
        parts = {name: part for part in message.keys for name in part.tables}
        for value, array in zip(values, arrays, strict=True):
            count, dim = parts[value.tables[0]].keys.size, int(value.shape[1])
            if array.size != count * dim:
                raise malformed(message)
            found.append(PartsOfRows((array.reshape(count, dim),)))
        return tuple(found)

    @staticmethod
    def sum_by_key(keys_and_gradients: Sequence[Any]) -> list[KeySums]:
        """Return the sums of the gradients of each key, in the order of lookups and nodes.

        The arguments are the keys of each lookup, followed by gradients for each table.
        """
        lookups = _by_keys(keys_and_gradients)
        of_tables = zip(*(gradients for _, gradients in lookups), strict=True)
        return [
            sum_by_key(
                [
                    term
                    for (keys, _), given in zip(lookups, of_table, strict=True)
                    for term in _terms(keys, given)
                ]
            )
            for of_table in of_tables
        ]

    def exact_squares(self, table: str, total: KeySums) -> Array:
        """Return the exact sum of squares of the gradients that update a table."""
        gradients = total.gradients
        bad = self.tables[table].find_not_finite(
            total.part.keys,
            total.gradients,
            drop_not_finite=self.drops_not_finite,
            where=f"in step {self.position.step}",
        )
        if bad is not None:
            gradients = gradients[~bad]
        return exact_squares([gradients])

    def update(
        self,
        tables: tuple[str, ...],
        totals: Sequence[KeySums],
        scales: Sequence[Any],
        limits: Sequence[float | None],
        message: WorkerMessage | None = None,
    ) -> None:
        """Update tables over the same keys by gradient sums, and let them forget old keys."""
        # The step of an asynchronous table is the last one that all workers have finished.
        step = draw = self.position.step
        if message is not None:
            sources = self.exchange.edges[message.edge].sources
            step = message.least
            draw = message.step * len(sources) + sources.index(message.worker)
        where = f"in step {step}"
        if message is not None:
            where = f"in step {message.step} of {message.worker}"
        updates = [
            RowUpdate(total, self.rates.of(table, message), scale, limit)
            for table, total, scale, limit in zip(
                tables, totals, scales, limits, strict=True
            )
        ]
        held = TablesOfKeys([self.tables[table] for table in tables])
        push = Push(step, draw, where, self.drops_not_finite)
        for table, pushed in zip(tables, held.push(updates, push), strict=True):
            self._warn_of_dropped(table, pushed, totals[0].part.keys.size, where)
            self.forget_up_to(table, step)
        self.on_update()

    def _warn_of_dropped(
        self, table: str, pushed: Pushed, keys: int, where: str
    ) -> None:
        """Warn once for a table that gradients which are not finite are dropped."""
        if not pushed.not_finite or table in self._has_dropped:
            return
        self._has_dropped.add(table)
        self.on_warning(
            f"table {table}: the gradients of {pushed.not_finite:,} of {keys:,} keys are not"
            f" finite {where}; such gradients are dropped, and the run continues because of"
            " train.nan: warn"
        )

    def forget_up_to(self, table: str, step: int) -> None:
        """Let a table forget keys after each step up to `step`, once per step."""
        held = self.tables[table]
        for swept in range(self._swept.get(table, 0) + 1, step + 1):
            held.forget(swept, held.latest)
        self._swept[table] = step

    def resume(self, step: int) -> None:
        """Continue after a step for which all tables have already forgotten keys."""
        self._swept = dict.fromkeys(self.tables, step)

    def _key(self, edge: int) -> Key:
        return self.position.key(self.exchange.edges[edge])


def _by_keys(keys_and_gradients: Sequence[Any]) -> list[tuple[Any, list[Any]]]:
    """Return the keys of each lookup, with the gradients that follow them."""
    lookups: list[tuple[Any, list[Any]]] = []
    for each in keys_and_gradients:
        if isinstance(each, BatchKeys | AskedKeys):
            lookups.append((each, []))
        else:
            lookups[-1][1].append(each)
    return lookups


def _terms(keys: BatchKeys | AskedKeys, gradients: Any) -> list[KeySums]:
    """Return the gradients of the keys of a lookup: one term for each node."""
    if isinstance(keys, BatchKeys):  # this node's own keys
        return [KeySums(keys.part, np.asarray(gradients)[: keys.keys.size])]
    for part, rows in zip(keys.parts, gradients.parts, strict=True):
        if len(rows) != part.keys.size:
            raise RunError(
                f"received {len(rows)} gradients for {part.keys.size} rows",
                hint="give every node of a run the same build",
            )
    return [*map(KeySums, keys.parts, gradients.parts)]
