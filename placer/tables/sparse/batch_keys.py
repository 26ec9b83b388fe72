"""The keys of a batch, each once, in the order of the servers that hold them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from placer.tables.machine_code import compiled
from placer.tables.sparse.hashing import U64, mix, partition_of
from placer.tables.sparse.merging import number_keys
from placer.tables.sparse.state import Array


class BatchKeys(NamedTuple):
    """The distinct keys of a batch.

    Attributes:
        keys: uint64, of shape [n]: first those of the first server, each server's in the
            order in which they first appear.
        splits: the keys of server i are `splits[i]` to `splits[i + 1]`.
        positions: int32, of shape [batch]: the index of each key of the batch, and n for
            padding.
        occurrences: uint32, of shape [n]: how often each key occurs.
    """

    keys: Array
    splits: tuple[int, ...]
    positions: Array
    occurrences: Array

    def of_server(self, server: int) -> slice:
        """Return which of the keys a server holds."""
        return slice(self.splits[server], self.splits[server + 1])


def server_partitions(server: int, servers: int, partitions: int) -> range:
    """Return the partitions that a server holds: neighboring ones."""
    first, stop = partitions * server // servers, partitions * (server + 1) // servers
    return range(first, stop)


def collect_keys(
    keys: Array, servers: int, partitions: int, padding: int | None = None
) -> BatchKeys:
    """Return the distinct keys of a batch.

    Args:
        keys: uint64 or int64, of shape [batch].
        servers: the number of servers, which share the partitions.
        partitions: the number of partitions, a power of two.
        padding: the key that stands for no key.
    """
    keys = np.ascontiguousarray(keys).view(np.uint64)
    is_key = None
    if padding is not None:
        is_key = keys != U64(padding & (2**64 - 1))
        keys_only = keys[is_key]
    distinct, numbers = number_keys(keys if is_key is None else keys_only)
    stops = np.array(
        [server_partitions(s, servers, partitions).stop for s in range(servers)],
        np.uint64,
    )
    bits = U64(partitions.bit_length() - 1)
    order = np.empty(distinct.size, np.int32)
    sizes = np.zeros(servers, np.int64)
    _order_by_server(distinct, bits, stops, order, sizes)
    ordered = np.empty_like(distinct)
    ordered[order] = distinct
    places = order[numbers]
    occurrences = np.bincount(places, minlength=distinct.size).astype(np.uint32)
    positions = places
    if is_key is not None:
        positions = np.full(keys.size, distinct.size, np.int32)
        positions[is_key] = places
    splits = (0, *np.cumsum(sizes).tolist())
    return BatchKeys(ordered, splits, positions, occurrences)


@compiled
def _order_by_server(
    keys: Array, bits: Any, stops: Array, order: Array, sizes: Array
) -> None:
    """Write the index of each key among those ordered by server to `order`, and the
    number of keys of each server to `sizes`."""
    for i in range(keys.size):
        partition = partition_of(mix(keys[i]), bits)
        server = 0
        while stops[server] <= partition:
            server += 1
        order[i] = server
        sizes[server] += 1
    next_ = np.zeros(stops.size, np.int64)
    for server in range(1, stops.size):
        next_[server] = next_[server - 1] + sizes[server - 1]
    for i in range(keys.size):
        server = order[i]
        order[i] = next_[server]
        next_[server] += 1


def padded_sizes(keys: int, count: int = 8) -> tuple[int, ...]:
    """Return the numbers of rows that a step may have for a batch of `keys` keys, at most
    `count` of them: a program is compiled for each.

    The last has room for all keys and a row for padding. The sizes are a function of the
    batch alone, so that all steps together need no other.
    """
    largest = keys + 1
    unit = -(-largest // count)
    return tuple(sorted({min(unit * i, largest) for i in range(1, count + 1)}))


def padded_size(rows: int, sizes: tuple[int, ...]) -> int:
    """Return the smallest of the sizes that has room for so many rows and one more."""
    return next(size for size in sizes if size > rows)
