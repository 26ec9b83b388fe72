"""Collects the distinct keys of a batch, ordered by the nodes that hold their rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from placer.place.layouts.sparse import server_partitions as server_partitions
from placer.plan.plan import Counted
from placer.tables.key_sums import KeyPart, Statistic
from placer.tables.machine_code import compiled
from placer.tables.sparse.hashing import U64, mix, partition_of
from placer.tables.sparse.merging import number_keys
from placer.tables.sparse.state import Array

SIZES = 4
"""The largest number of padded sizes. A program is compiled for each size."""
LEAST = 1024
"""The smallest difference between two padded sizes. Closer sizes would save little."""


@dataclass(slots=True, eq=False)
class BatchKeys:
    """The distinct keys of a batch.

    Attributes:
        part: the keys, ordered by holder. The keys of a holder are in the order of their
            first occurrences.
        splits: the keys of holder i are `splits[i]` to `splits[i + 1]`.
        sizes: the possible padded sizes of the rows. They depend only on the number of keys
            in the batch, and the last size fits all keys.
        size: the chosen padded size.
    """

    part: KeyPart
    splits: tuple[int, ...]
    sizes: tuple[int, ...]
    size: int = 0

    @property
    def keys(self) -> Array:
        """The keys, uint64[n]."""
        return self.part.keys

    def message_to(self, server: int, counted: Iterable[Counted]) -> list[Array]:
        """Return the arrays of the message to holder `server`, with what is `counted`."""
        own = self.of_server(server)
        message = [self.keys[own], self.part.occurrences[own]]
        for each in counted:
            statistic = self.part.find(each.what, each.tables[0])
            assert statistic is not None, each
            message.append(statistic.values[own])
            if each.what == "times":
                message.append(np.array([statistic.now], np.uint32))
        return message

    def of_server(self, server: int) -> slice:
        """Return the range of the keys of holder `server`."""
        return slice(self.splits[server], self.splits[server + 1])

    @property
    def least_size(self) -> int:
        """The number of the smallest size that fits all keys."""
        return next(i for i, size in enumerate(self.sizes) if size >= self.keys.size)

    def choose_size(self, number: int) -> None:
        """Choose size `number`, or the last size if the number is too large."""
        self.size = self.sizes[min(number, len(self.sizes) - 1)]


def padded_sizes(keys: int) -> tuple[int, ...]:
    """Return the possible padded numbers of rows for a batch of `keys` keys, ascending.

    They depend only on the size of the batch, so all steps use the same sizes.
    """
    unit = max(LEAST, -(-keys // SIZES))
    return tuple(sorted({min(unit * i, max(1, keys)) for i in range(1, SIZES + 1)}))


def collect_keys(
    ids: Sequence[Array],
    servers: int,
    partitions: int,
    padding: Sequence[int | None] = (),
    of_rows: Sequence[Statistic] = (),
    tables: tuple[str, ...] = (),
) -> tuple[BatchKeys, list[Array]]:
    """Return the distinct keys of a batch, and the position of each key.

    Args:
        ids: arrays of integers of any shape; of shape [batch, …] with `of_rows`.
        servers: the number of nodes that share the partitions.
        partitions: the number of partitions, a power of two.
        padding: for each array, the key that means "no key", or None.
        of_rows: the score that an occurrence in each row of the batch adds to its key, and
            the time of each row in seconds, integers; each of shape [batch].
        tables: the tables whose rows the keys select.

    Returns:
        The distinct keys, and for each array the positions of its keys among them: int32 of
        the array's shape, -1 for padding.
    """
    arrays = [_as_keys(each) for each in ids]
    masks = [
        None if key is None else array != U64(key & (2**64 - 1))
        for array, key in zip(arrays, padding or [None] * len(arrays), strict=True)
    ]
    real = [
        array if mask is None else array[mask]
        for array, mask in zip(arrays, masks, strict=True)
    ]
    keys = real[0] if len(real) == 1 else np.concatenate(real)
    distinct, numbers = number_keys(keys)
    stops = np.array(
        [server_partitions(s, servers, partitions).stop for s in range(servers)],
        np.uint64,
    )
    bits = U64(partitions.bit_length() - 1)
    order = np.empty(distinct.size, np.int32)
    counts = np.zeros(servers, np.int64)
    ordered, occurrences = np.empty_like(distinct), np.zeros(distinct.size, np.uint32)
    places = np.empty_like(numbers)
    _order_by_server(distinct, bits, stops, order, counts)
    _place_keys(distinct, numbers, order, ordered, occurrences, places)
    positions, low = [], 0
    for array, mask, given in zip(real, masks, ids, strict=True):
        part = places[low : low + array.size]
        low += array.size
        if mask is not None:
            own, part = part, np.full(mask.size, -1, np.int32)
            part[mask] = own
        positions.append(part.reshape(given.shape))
    splits = (0, *np.cumsum(counts).tolist())
    sizes = padded_sizes(sum(each.size for each in arrays))
    statistics = []
    if of_rows:
        rows = [
            np.flatnonzero(np.ones(a.size, np.bool_) if m is None else m)
            // max(1, a.size // max(1, len(given)))
            for a, m, given in zip(arrays, masks, ids, strict=True)
        ]
        of_row = np.concatenate(rows)
    for each in of_rows:
        if each.what == "scores":
            found = np.zeros(ordered.size, np.float32)
            np.add.at(found, places, each.values.astype(np.float32)[of_row])
            statistics.append(each._replace(values=found))
        else:
            seconds = each.values.astype(np.uint32)
            found = np.zeros(ordered.size, np.uint32)
            np.maximum.at(found, places, seconds[of_row])
            now = int(seconds.max(initial=0))
            statistics.append(each._replace(values=found, now=now))
    collected = KeyPart(ordered, occurrences, statistics, tables)
    return BatchKeys(collected, splits, sizes), positions


def _as_keys(ids: Array) -> Array:
    """Return integers as flat uint64 keys with the same bits.

    The array is always writable, so that numba compiles the loops only once.
    """
    if ids.dtype.itemsize < 8:
        ids = ids.astype(np.int64)
    return np.require(ids.reshape(-1), None, ["C", "W"]).view(np.uint64)


@compiled
def _order_by_server(
    keys: Array, bits: Any, stops: Array, order: Array, sizes: Array
) -> None:
    """Write each key's index in the order by server to `order`, and key counts to `sizes`."""
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


@compiled
def _place_keys(
    keys: Array,
    numbers: Array,
    order: Array,
    ordered: Array,
    occurrences: Array,
    places: Array,
) -> None:
    """Write the ordered keys, the occurrences of each key, and the place of each number."""
    for i in range(keys.size):
        ordered[order[i]] = keys[i]
    for i in range(numbers.size):
        place = order[numbers[i]]
        places[i] = place
        occurrences[place] += np.uint32(1)
