"""Exchanges rows of sparse tables by key, between nodes that look up rows and their holders.

A node sends each holder of a table the distinct keys that this holder stores, with their
counts in the batch. The holder answers with the rows. The gradients of the rows go back in the
same order. Tables that are looked up at the same places share messages, and tables over the
same keys share the keys:

    keys       uint64[n] and uint32[n] for each table, or for tables over the same keys: the
               keys, and their counts; for each of `EdgeValue.statistics`, float32[n]: additions to
               scores; or uint32[n] and uint32[1]: times of the keys and the latest time
    rows       dtype[n, dim] for each table
    gradients  dtype[n, dim] for each table
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from placer.channel.interface import Array, Channel, Key
from placer.errors import RunError
from placer.plan.plan import Edge, EdgeValue, SparseTable
from placer.runtime.exchange.worker_messages import HEADER_SIZE
from placer.system.memory.arena import Arena
from placer.tables.key_sums import KeyPart, Statistic
from placer.tables.sparse.batch_keys import BatchKeys, server_partitions
from placer.tables.sparse.found_rows import FoundRows
from placer.tables.sparse.hashing import U64, mix, partition_of


@dataclass(frozen=True, slots=True)
class AskedKeys:
    """Requested keys, on the node that holds their rows.

    Attributes:
        parts: the keys of each requesting node, in the order of the nodes.
        found: the rows of each part in each of the tables, if they were located ahead.
    """

    parts: tuple[KeyPart, ...]
    found: tuple[tuple[FoundRows, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class PartsOfRows:
    """Rows or row gradients for each requesting node: [n, dim], in the order of its keys."""

    parts: tuple[Array, ...]


@dataclass(slots=True)
class RowExchange:
    """A node's side of the edges that carry rows by key.

    Messages that a node sends to itself do not pass through the channel.

    Args:
        node: the name of the node.
        channel: the channel of the node.
        edges: the edges of the plan, by number.
        tables: the sparse tables of the plan, by name.
        arena: the memory of rows.
    """

    node: str
    channel: Channel
    edges: Mapping[int, Edge]
    tables: Mapping[str, SparseTable]
    arena: Arena = field(default_factory=Arena)
    _own: dict[Key, list[Array]] = field(default_factory=dict)

    def send_keys(self, key: Key, keys: Sequence[BatchKeys]) -> None:
        """Send each holder the keys that it stores."""
        edge = self.edges[key.edge]
        for i, holder in enumerate(edge.targets):
            self._send(holder, key, message_of_keys(edge, keys, i))

    def receive_keys(self, key: Key) -> tuple[AskedKeys, ...]:
        """Wait for the requested keys of all nodes, for each value of the edge.

        Raises:
            RunError: if a message does not hold valid keys of this node and their counts.
        """
        edge = self.edges[key.edge]
        parts: list[list[KeyPart]] = [[] for _ in edge.values]
        dtypes = dtypes_of_keys(edge)
        for source in edge.sources:
            message = self._receive(source, key, len(dtypes))
            for part, each in zip(
                parts, self.read_keys(edge, source, message), strict=True
            ):
                part.append(each)
        return tuple(AskedKeys(tuple(each)) for each in parts)

    def tables_of(self, edge: int) -> list[tuple[str, ...]]:
        """Return the tables of each value of an edge."""
        return [value.tables for value in self.edges[edge].values]

    def read_keys(
        self, edge: Edge, source: str, message: Sequence[Array]
    ) -> list[KeyPart]:
        """Return the keys that a node requests, for each value of the edge.

        Raises:
            RunError: if the arrays do not hold valid keys of this node and their counts.
        """
        arrays, found = iter(message), []
        for value in edge.values:
            keys, counts = next(arrays), next(arrays)
            statistics, fits = [], True
            for each in value.statistics:
                values, now = next(arrays), 0
                if each.what == "times":
                    latest = next(arrays)
                    fits = fits and latest.dtype == np.uint32 and latest.shape == (1,)
                    now = int(latest[0]) if fits else 0
                statistics.append(Statistic(each.what, each.tables, values, now))
            part = KeyPart(keys, counts, statistics, value.tables)
            self._check_keys(source, self.tables[value.tables[0]], part, fits)
            found.append(part)
        return found

    def send_rows(self, key: Key, rows: Sequence[PartsOfRows]) -> None:
        """Send each node the rows that it has requested, for each table."""
        for i, target in enumerate(self.edges[key.edge].targets):
            self._send(target, key, [each.parts[i] for each in rows])

    def receive_rows(self, key: Key, keys: Sequence[BatchKeys]) -> tuple[Array, ...]:
        """Wait for the rows of keys.

        Returns:
            For each of `keys`, an array [size, dim]; zeros follow the rows of the keys.
        """
        edge = self.edges[key.edge]
        arrays = self._allocate(edge, keys)
        for i, source in enumerate(edge.sources):
            spaces = _spaces(arrays, keys, i)
            if source == self.node:
                for space, rows in zip(spaces, self._own.pop(key), strict=True):
                    space[...] = rows
            else:
                self._receive_into(source, key, spaces)
        return tuple(arrays)

    def receive_answers(
        self, edge: Edge, key: Key, keys: Sequence[BatchKeys]
    ) -> tuple[tuple[Array, ...], list[Array]]:
        """Wait for the rows of keys of an asynchronous table; a header precedes the rows.

        Returns:
            The rows, as in `receive_rows`, and the header of each source.
        """
        arrays, heads = self._allocate(edge, keys), []
        for i, source in enumerate(edge.sources):
            heads.append(np.empty(HEADER_SIZE, np.int64))
            self._receive_into(source, key, [heads[-1], *_spaces(arrays, keys, i)])
        return tuple(arrays), heads

    def _allocate(self, edge: Edge, keys: Sequence[BatchKeys]) -> list[Array]:
        """Return an array for the rows of each table, with zeros after the rows."""
        arrays = []
        for value, each in zip(edge.values, keys, strict=True):
            shape = each.size, int(value.shape[1])
            arrays.append(self.arena.allocate(np.dtype(value.dtype), shape))
            arrays[-1][each.keys.size :] = 0
        return arrays

    def _receive_into(self, source: str, key: Key, spaces: Sequence[Array]) -> None:
        received = self.channel.receive(source, key, out=spaces)
        if len(received) != len(spaces) or any(
            array is not space for array, space in zip(received, spaces, strict=True)
        ):
            raise self._mismatch(source, key)

    def send_gradients(
        self, key: Key, keys: Sequence[BatchKeys], gradients: Sequence[Array]
    ) -> None:
        """Send each holder the gradients of its rows, for each table. The gradients
        must not change until the holder has received them."""
        for i, holder in enumerate(self.edges[key.edge].targets):
            message = [
                array[each.of_server(i)]
                for array, each in zip(gradients, keys, strict=True)
            ]
            self._send(holder, key, message)

    def receive_gradients(self, key: Key) -> tuple[PartsOfRows, ...]:
        """Wait for the row gradients of all nodes, for each table.

        Raises:
            RunError: if a message does not hold row gradients.
        """
        edge = self.edges[key.edge]
        parts: list[list[Array]] = [[] for _ in edge.values]
        for source in edge.sources:
            message = self._receive(source, key, len(edge.values))
            for i, (value, array) in enumerate(zip(edge.values, message, strict=True)):
                if array.dtype != value.dtype or array.shape[1:] != value.shape[1:]:
                    raise self._mismatch(source, key)
                parts[i].append(array)
        return tuple(PartsOfRows(tuple(each)) for each in parts)

    def _send(self, target: str, key: Key, message: list[Array]) -> None:
        if target == self.node:
            self._own[key] = message
        else:
            self.channel.send(target, key, message)

    def _receive(self, source: str, key: Key, count: int) -> Sequence[Array]:
        if source == self.node:
            return self._own.pop(key)
        message = self.channel.receive(source, key)
        if len(message) != count:
            raise self._mismatch(source, key)
        return message

    def _check_keys(
        self, source: str, table: SparseTable, part: KeyPart, fits: bool
    ) -> None:
        """Check received keys, because the loops of a table check no bounds. `fits`
        says whether the remaining arrays are valid."""
        partitions, keys = table.settings.partitions, part.keys
        holders = table.holders
        problem = ""
        others: list[tuple[Array, np.dtype[Any]]] = [
            (part.occurrences, np.dtype(np.uint32))
        ]
        others += [(each.values, _DTYPES[each.what]) for each in part.statistics]
        if (
            not fits
            or keys.ndim != 1
            or keys.dtype != np.uint64
            or any(
                array.dtype != dtype or array.shape != keys.shape
                for array, dtype in others
            )
            or not part.occurrences.all()
        ):
            problem = "are malformed"
        elif len(holders) > 1:
            held = server_partitions(holders.index(self.node), len(holders), partitions)
            of = partition_of(mix(keys), U64(partitions.bit_length() - 1))
            if np.any((of < held.start) | (of >= held.stop)):
                problem = "belong to other nodes"
        if problem:
            raise RunError(
                f"table {table.name}: keys or counts from {source} {problem}",
                hint="give every node of a run the same build",
            )

    def _mismatch(self, source: str, key: Key) -> RunError:
        return RunError(
            f"the message from {source} on {key} does not fit the build",
            hint="give every node of a run the same build",
        )


def _spaces(
    arrays: Sequence[Array], keys: Sequence[BatchKeys], holder: int
) -> list[Array]:
    """Return the part of each array for the rows of a holder."""
    return [a[each.of_server(holder)] for a, each in zip(arrays, keys, strict=True)]


_DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "scores": np.dtype(np.float32),
    "times": np.dtype(np.uint32),
}
"""The dtype of each kind of statistics."""


def message_of_keys(edge: Edge, keys: Sequence[BatchKeys], holder: int) -> list[Array]:
    """Return the message with the keys that a holder, by its index, stores."""
    return [
        array
        for value, each in zip(edge.values, keys, strict=True)
        for array in each.message_to(holder, value.statistics)
    ]


def dtypes_of_keys(edge: Edge) -> list[Any]:
    """Return the dtypes of the arrays in a message of keys."""
    return [dtype for value in edge.values for dtype in _dtypes_of_value(value)]


def _dtypes_of_value(value: EdgeValue) -> list[Any]:
    """Return the dtypes of a value's arrays in a message of keys."""
    dtypes = [np.dtype(np.uint64), np.dtype(np.uint32)]
    for each in value.statistics:
        dtypes += [_DTYPES[each.what]] * (2 if each.what == "times" else 1)
    return dtypes
