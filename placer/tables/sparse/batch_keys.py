"""Collects the distinct keys of a batch, ordered by the nodes that hold their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from placer.place.layouts.sparse import server_partitions as server_partitions
from placer.tables.key_sums import KeyPart
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
        keys: uint64[n], ordered by holder. The keys of a holder are in the order of their
            first occurrences.
        splits: the keys of holder i are `splits[i]` to `splits[i + 1]`.
        occurrences: uint32[n]: how often each key occurs.
        sizes: the possible padded sizes of the rows. They depend only on the number of keys
            in the batch, and the last size fits all keys.
        table: the name of the table.
        size: the chosen padded size.
        scores: float32[n]: the increase of each key's score, if rows have scores.
        times: uint32[n]: when each key was last seen, in seconds, if rows have times.
        now: the latest time of the batch.
    """

    keys: Array
    splits: tuple[int, ...]
    occurrences: Array
    sizes: tuple[int, ...]
    table: str = ""
    size: int = 0
    scores: Array | None = None
    times: Array | None = None
    now: int = 0

    @property
    def part(self) -> KeyPart:
        """All keys as one part, for a table with one holder."""
        return KeyPart(self.keys, self.occurrences, self.scores, self.times, self.now)

    def message_to(self, server: int) -> list[Array]:
        """Return the arrays of the message to holder `server`."""
        own = self.of_server(server)
        message = [self.keys[own], self.occurrences[own]]
        if self.scores is not None:
            message.append(self.scores[own])
        if self.times is not None:
            message += [self.times[own], np.array([self.now], np.uint32)]
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
    row_scores: Array | None = None,
    row_times: Array | None = None,
) -> tuple[BatchKeys, list[Array]]:
    """Return the distinct keys of a batch, and the position of each key.

    Args:
        ids: arrays of integers of any shape; of shape [batch, …] with scores or times.
        servers: the number of nodes that share the partitions.
        partitions: the number of partitions, a power of two.
        padding: for each array, the key that means "no key", or None.
        row_scores: the score that an occurrence in each row of the batch adds to its key,
            of shape [batch].
        row_times: the time of each row in seconds, integers of shape [batch].

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
    collected = BatchKeys(ordered, splits, occurrences, sizes)
    if row_scores is not None or row_times is not None:
        rows = [
            np.flatnonzero(np.ones(a.size, np.bool_) if m is None else m)
            // max(1, a.size // max(1, len(given)))
            for a, m, given in zip(arrays, masks, ids, strict=True)
        ]
        of_row = np.concatenate(rows)
        if row_scores is not None:
            collected.scores = np.zeros(ordered.size, np.float32)
            np.add.at(collected.scores, places, row_scores.astype(np.float32)[of_row])
        if row_times is not None:
            seconds = row_times.astype(np.uint32)
            collected.times = np.zeros(ordered.size, np.uint32)
            np.maximum.at(collected.times, places, seconds[of_row])
            collected.now = int(seconds.max(initial=0))
    return collected, positions


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
