"""Rows of sparse tables by key: what the nodes that look them up and the nodes that hold
them send each other.

A node sends each holder of a table the distinct keys of its batch that this holder has,
and how often each occurs. The holder answers with their rows; the gradients of these rows
go back in the same order. Tables that are looked up at the same places share messages:

    keys       uint64[n] and uint32[n] for each table: the keys, and their occurrences
    rows       dtype[n, dim] for each table
    gradients  dtype[n, dim] for each table
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from placer.build.plan import Edge, SparseTable
from placer.channel.protocol import Array, Channel, Key
from placer.errors import RunError
from placer.memory.arena import Arena
from placer.runtime.program.worker_messages import HEADER_SIZE
from placer.tables.sparse.batch_keys import BatchKeys, server_partitions
from placer.tables.sparse.hashing import U64, mix, partition_of


@dataclass(frozen=True, slots=True)
class AskedKeys:
    """Keys that nodes look up, as a node that holds them has them.

    Attributes:
        parts: the keys of each node that asks, uint64[n], and their occurrences,
            uint32[n]; in the order of the nodes.
    """

    parts: tuple[tuple[Array, Array], ...]


@dataclass(frozen=True, slots=True)
class PartsOfRows:
    """Rows, or the gradients of rows, for each node that has asked for them: of shape
    [n, dim], in the order of its keys."""

    parts: tuple[Array, ...]


@dataclass(slots=True)
class RowExchange:
    """One node's end of the edges of rows by key.

    What a node sends to itself does not pass through the channel.

    Args:
        node: the name of the node.
        channel: its channel.
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
        """Send each holder its keys of each table."""
        for i, holder in enumerate(self.edges[key.edge].targets):
            message = []
            for each in keys:
                own = each.of_server(i)
                message += [each.keys[own], each.occurrences[own]]
            self._send(holder, key, message)

    def receive_keys(self, key: Key) -> tuple[AskedKeys, ...]:
        """Wait for the keys that all nodes ask for: those of each table.

        Raises:
            RunError: what a node sent is not keys of this node, and how often each
                occurs.
        """
        edge = self.edges[key.edge]
        parts: list[list[tuple[Array, Array]]] = [[] for _ in edge.values]
        for source in edge.sources:
            message = self._receive(source, key, 2 * len(edge.values))
            pairs = self.read_keys(edge, source, message)
            for part, pair in zip(parts, pairs, strict=True):
                part.append(pair)
        return tuple(AskedKeys(tuple(each)) for each in parts)

    def read_keys(
        self, edge: Edge, source: str, message: Sequence[Array]
    ) -> list[tuple[Array, Array]]:
        """Return the keys of each table that a node asks for, and their occurrences.

        Raises:
            RunError: the arrays are not keys of this node, and how often each occurs.
        """
        pairs = [*zip(message[::2], message[1::2], strict=True)]
        for value, (keys, occurrences) in zip(edge.values, pairs, strict=True):
            self._check_keys(source, self.tables[str(value.table)], keys, occurrences)
        return pairs

    def send_rows(self, key: Key, rows: Sequence[PartsOfRows]) -> None:
        """Send each node the rows that it has asked for, of each table."""
        for i, target in enumerate(self.edges[key.edge].targets):
            self._send(target, key, [each.parts[i] for each in rows])

    def receive_rows(self, key: Key, keys: Sequence[BatchKeys]) -> tuple[Array, ...]:
        """Wait for the rows of keys.

        Returns:
            For each of `keys` an array [size, dim], with zeros behind the rows of the keys.
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
        """Wait for the rows of keys without lockstep, before which there is a header.

        Returns:
            The rows, as `receive_rows` does, and the header of each source.
        """
        arrays, heads = self._allocate(edge, keys), []
        for i, source in enumerate(edge.sources):
            heads.append(np.empty(HEADER_SIZE, np.int64))
            self._receive_into(source, key, [heads[-1], *_spaces(arrays, keys, i)])
        return tuple(arrays), heads

    def _allocate(self, edge: Edge, keys: Sequence[BatchKeys]) -> list[Array]:
        """Return an array for the rows of each table, with zeros behind the rows."""
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
        """Send each holder the gradients of its rows, of each table. They must not change
        until the holder has them."""
        for i, holder in enumerate(self.edges[key.edge].targets):
            message = [
                array[each.of_server(i)]
                for array, each in zip(gradients, keys, strict=True)
            ]
            self._send(holder, key, message)

    def receive_gradients(self, key: Key) -> tuple[PartsOfRows, ...]:
        """Wait for the gradients of all nodes, of each table.

        Raises:
            RunError: what a node sent is not rows of gradients.
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
        self, source: str, table: SparseTable, keys: Array, counts: Array
    ) -> None:
        """Check what a node has sent: loops of a table check no bounds."""
        partitions = table.settings.partitions
        holders = table.holders
        held = server_partitions(holders.index(self.node), len(holders), partitions)
        problem = ""
        if (
            keys.ndim != 1
            or keys.dtype != np.uint64
            or counts.dtype != np.uint32
            or counts.shape != keys.shape
            or not counts.all()
        ):
            problem = "do not fit"
        elif len(holders) > 1:
            of = partition_of(mix(keys), U64(partitions.bit_length() - 1))
            if np.any((of < held.start) | (of >= held.stop)):
                problem = "are not all of this node"
        if problem:
            raise RunError(
                f"table {table.name}: keys from {source}, and how often they occur,"
                f" {problem}",
                hint="give every node of a run the same build",
            )

    def _mismatch(self, source: str, key: Key) -> RunError:
        return RunError(
            f"what {source} sent on {key} does not fit the build",
            hint="give every node of a run the same build",
        )


def _spaces(
    arrays: Sequence[Array], keys: Sequence[BatchKeys], holder: int
) -> list[Array]:
    """Return the part of each array that has the rows of a holder."""
    return [a[each.of_server(holder)] for a, each in zip(arrays, keys, strict=True)]
