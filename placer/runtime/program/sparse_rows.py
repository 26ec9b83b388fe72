"""Rows of a sparse table in lockstep: workers ask for those of their keys, and push the
gradients of the same rows.

In each step a worker sends each server the distinct keys of its batch that this server
holds, in one message; the server answers with their rows, as they are after the step
before. When the gradients of the rows have come from all workers, the server adds up
what they have of each key, in their order, and updates each key once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from placer.channel.protocol import Array, Channel, Key
from placer.errors import RunError
from placer.memory.arena import Arena
from placer.tables.sparse.batch_keys import (
    BatchKeys,
    collect_keys,
    padded_size,
    padded_sizes,
    server_partitions,
)
from placer.tables.sparse.hashing import U64, mix, partition_of
from placer.tables.sparse.merging import add_rows, number_keys
from placer.tables.sparse.table import Pushed, SparseTable


@dataclass(frozen=True, slots=True)
class SparseEdges:
    """The messages of a sparse table.

    Attributes:
        keys: the edge of the keys, from workers to servers.
        rows: the edge of their rows, back.
        gradients: the edge of the gradients of these rows, from workers to servers.
        workers: the nodes that look up keys, in order.
        servers: the nodes that hold partitions, in order.
    """

    keys: int
    rows: int
    gradients: int
    workers: tuple[str, ...]
    servers: tuple[str, ...]


@dataclass(slots=True)
class SparseLookup:
    """A worker's side of a sparse table.

    Args:
        channel: the channel of the worker.
        edges: the messages of the table.
        dim: the columns of a row.
        dtype: the dtype of rows and gradients.
        partitions: the partitions of the table.
        batch_keys: the keys of a full batch of this worker.
        padding: the key that stands for no key.
        arena: the memory of rows.
    """

    channel: Channel
    edges: SparseEdges
    dim: int
    dtype: str
    partitions: int
    batch_keys: int
    padding: int | None = None
    arena: Arena = field(default_factory=Arena)
    _asked: dict[int, BatchKeys] = field(default_factory=dict)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of rows that `rows` may return."""
        return padded_sizes(self.batch_keys)

    def ask(self, step: int, keys: Array) -> None:
        """Send the distinct keys of a batch to the servers that hold them.

        Args:
            step: the step.
            keys: int64 or uint64, of shape [n], n at most `batch_keys`.
        """
        servers = self.edges.servers
        batch = collect_keys(keys, len(servers), self.partitions, self.padding)
        self._asked[step] = batch
        for i, server in enumerate(servers):
            own = batch.of_server(i)
            message = [batch.keys[own], batch.occurrences[own]]
            self.channel.send(server, Key(self.edges.keys, step), message)

    def rows(self, step: int) -> tuple[Array, Array]:
        """Wait for the rows of the keys that were asked for.

        Returns:
            The rows, of shape [m, dim] for an m of `sizes`, of which those behind the
            distinct keys are 0; and the row of each key of the batch, int32 of shape [n],
            where that of padding is one of zeros.
        """
        batch = self._asked[step]
        count = batch.keys.size
        size = padded_size(count, self.sizes)
        rows = self.arena.allocate(np.dtype(self.dtype), (size, self.dim))
        rows[count:] = 0
        for i, server in enumerate(self.edges.servers):
            key, own = Key(self.edges.rows, step), rows[batch.of_server(i)]
            (answer,) = self.channel.receive(server, key, out=[own])
            assert answer is own
        return rows, batch.positions

    def push(self, step: int, gradients: Array) -> None:
        """Send the gradients of the rows of a step, of shape [m, dim] as `rows` returned
        them. They must not change until the servers have them."""
        batch = self._asked.pop(step)
        for i, server in enumerate(self.edges.servers):
            own = np.ascontiguousarray(gradients[batch.of_server(i)])
            self.channel.send(server, Key(self.edges.gradients, step), [own])


@dataclass(slots=True)
class SparseService:
    """A server's side of a sparse table: see `SparseLookup`.

    Args:
        channel: the channel of the server.
        edges: the messages of the table.
        table: the rows of its partitions.
    """

    channel: Channel
    edges: SparseEdges
    table: SparseTable
    _asked: dict[tuple[int, str], tuple[Array, Array]] = field(default_factory=dict)

    def answer(self, step: int) -> None:
        """Send each worker the rows of the keys that it asks for.

        Raises:
            RunError: a message is not keys of this server, and how often each occurs.
        """
        for worker in self.edges.workers:
            source = Key(self.edges.keys, step)
            keys, occurrences = self.channel.receive(worker, source)
            self._check_keys(worker, keys, occurrences)
            self._asked[step, worker] = keys, occurrences
            rows = self.table.pull(keys)
            self.channel.send(worker, Key(self.edges.rows, step), [rows])

    def update(self, step: int, learning_rate: float, scale: float = 1.0) -> Pushed:
        """Update the rows of a step by the gradients of all workers.

        Raises:
            RunError: gradients are not those of the rows that a worker asked for.
        """
        asked = [self._asked.pop((step, worker)) for worker in self.edges.workers]
        keys, numbers = number_keys(np.concatenate([keys for keys, _ in asked]))
        sums = np.zeros((keys.size, self.table.settings.dim), self.table.dtype)
        occurrences = np.zeros(keys.size, np.int64)
        low = 0
        for worker, (own, counts) in zip(self.edges.workers, asked, strict=True):
            gradients = self._gradients(worker, step, own.size)
            part = numbers[low : low + own.size]
            add_rows(gradients, part, sums)
            np.add.at(occurrences, part, counts)
            low += own.size
        return self.table.push(
            keys,
            sums,
            learning_rate=learning_rate,
            step=step,
            occurrences=np.minimum(occurrences, 2**32 - 1).astype(np.uint32),
            scale=scale,
        )

    def _check_keys(self, worker: str, keys: Array, occurrences: Array) -> None:
        partitions = self.table.settings.partitions
        servers = self.edges.servers
        own = server_partitions(
            servers.index(self.channel.node), len(servers), partitions
        )
        if (
            keys.ndim != 1
            or keys.dtype != np.uint64
            or occurrences.dtype != np.uint32
            or occurrences.shape != keys.shape
            or not occurrences.all()
        ):
            problem = "do not fit"
        else:
            bits = U64(partitions.bit_length() - 1)
            held = partition_of(mix(keys), bits)
            if not np.any((held < own.start) | (held >= own.stop)):
                return
            problem = "are not all of this server"
        raise RunError(
            f"table {self.table.settings.name}: keys from {worker}, and how often they"
            f" occur, {problem}"
        )

    def _gradients(self, worker: str, step: int, rows: int) -> Array:
        (gradients,) = self.channel.receive(worker, Key(self.edges.gradients, step))
        expected = (rows, self.table.settings.dim)
        if gradients.shape != expected or gradients.dtype != self.table.dtype:
            raise RunError(
                f"table {self.table.settings.name}: gradients from {worker} are"
                f" {gradients.dtype}{list(gradients.shape)}, expected"
                f" {self.table.dtype}{list(expected)}"
            )
        return gradients
