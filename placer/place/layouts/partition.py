"""Partitions rows: which rows of a batch each node of a place holds.

This module imports neither numpy nor JAX: the compiler and the runtime share it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Annotated

from msgspec import Meta, Struct

from placer.place.node_kinds import HETER, WORKER, NodeId

RowRange = tuple[int, int]
"""The rows [low, high)."""


def part_range(count: int, index: int, parts: int) -> RowRange:
    """Return the rows [low, high) of part `index`, when `count` rows have `parts`
    parts. Parts are contiguous and as even as possible. Longer parts come first. A part
    can be empty."""
    size, longer = divmod(count, parts)  # The first `longer` parts have one row more.
    low = index * size + min(index, longer)
    return low, low + size + (index < longer)


def _part_index(row: int, count: int, parts: int) -> int:
    """Return the index of the part that contains a row: the inverse of `part_range`."""
    size, longer = divmod(count, parts)
    rows_of_longer = longer * (size + 1)
    if row < rows_of_longer:
        return row // (size + 1)
    return longer + (row - rows_of_longer) // size


class RowShard(Struct, frozen=True, forbid_unknown_fields=True):
    """The rows of a batch that one node holds.

    The batch is divided into `num_parts` parts (see `part_range`). The node holds the
    parts `part_indices`, concatenated in this order.
    """

    part_indices: tuple[Annotated[int, Meta(ge=0)], ...]
    num_parts: int

    def ranges(self, count: int) -> tuple[RowRange, ...]:
        """Return the non-empty row ranges of a batch of `count` rows."""
        ranges = (
            part_range(count, index, self.num_parts) for index in self.part_indices
        )
        return tuple((low, high) for low, high in ranges if high > low)

    def num_rows(self, count: int, microbatches: int = 1) -> int:
        """Return the number of local rows in a batch of `count` rows. Each microbatch
        is divided into parts separately."""
        bounds = (part_range(count, i, microbatches) for i in range(microbatches))
        return sum(
            high - low
            for first, end in bounds
            for low, high in self.ranges(end - first)
        )


def row_shards(nodes: Sequence[str], workers: int) -> tuple[RowShard, ...]:
    """Return the shard of each node, for nodes that share a batch. Each node holds one
    part, in node order. Heter nodes hold the rows of their workers: with `workers`
    workers, the i-th of m heter nodes has the rows of workers i, i + m, i + 2m, …."""
    return tuple(row_shard(nodes, i, workers) for i in range(len(nodes)))


def row_shard(nodes: Sequence[str], index: int, workers: int) -> RowShard:
    """Return the shard of one node, as in `row_shards`."""
    n = len(nodes)
    if _follows_workers(nodes, workers):
        return RowShard(tuple(range(index, workers, n)), workers)
    return RowShard((index,), n)


def _follows_workers(nodes: Sequence[str], workers: int) -> bool:
    """Return True if the nodes are heter nodes, which hold the rows of their
    workers.
    """
    return bool(workers) and NodeId(nodes[0]).kind == HETER


class PartitionedNodes:
    """Nodes that may share the rows of a batch, with the local offset of each range.

    Looking up one node, or the nodes of a row range, does not iterate over all nodes.
    """

    def __init__(self, names: Sequence[str], count: int, workers: int) -> None:
        self.names = names
        self._count = count
        self._workers = workers
        self._ranges: dict[str, list[tuple[int, int, int]]] = {}

    @cached_property
    def positions(self) -> dict[str, int]:
        """The index of each node."""
        return {name: i for i, name in enumerate(self.names)}

    @cached_property
    def _first_of_process(self) -> dict[str, str]:
        first: dict[str, str] = {}
        for name in self.names:
            first.setdefault(NodeId(name).process, name)
        return first

    def companion_of(self, name: str, others: PartitionedNodes) -> str | None:
        """Return the companion of a node of `others` among these nodes, or None.
        Between workers and heter nodes, the companion is the first node that holds rows
        of the same worker. Otherwise it is the first thread of the same process."""
        kinds = NodeId(self.names[0]).kind, NodeId(others.names[0]).kind
        index, workers = others.positions[name], self._workers
        if kinds == (HETER, WORKER) and len(others.names) == workers:
            return self.names[index % len(self.names)]
        if kinds == (WORKER, HETER) and len(self.names) == workers and index < workers:
            return self.names[index]
        process = NodeId(name).process
        return self._first_of_process.get(process) if process != name else None

    def ranges(self, name: str) -> Sequence[tuple[int, int, int]]:
        """Return (low, high, offset) for each row range of a node. `offset` is the
        index of row `low` among the node's local rows."""
        ranges = self._ranges.get(name)
        if ranges is None:
            ranges, offset = [], 0
            shard = row_shard(self.names, self.positions[name], self._workers)
            for low, high in shard.ranges(self._count):
                ranges.append((low, high, offset))
                offset += high - low
            self._ranges[name] = ranges
        return ranges

    def ranges_within(self, low: int, high: int) -> Iterator[tuple[str, int, int, int]]:
        """Yield (node, low, high, offset) for each range that intersects the rows [low,
        high). Ranges are not clipped."""
        for name in self._candidates(low, high):
            ranges = self.ranges(name)
            # A node's ranges are sorted and disjoint. The intersecting ones start with
            # the first that ends after `low`, and end with the last that starts before
            # `high`.
            first = bisect_right(ranges, low, key=itemgetter(1))
            last = bisect_left(ranges, high, key=itemgetter(0))
            for a, b, offset in ranges[first:last]:
                yield name, a, b, offset

    def _candidates(self, low: int, high: int) -> Sequence[str]:
        """Return the nodes that may hold some of the rows [low, high), in order."""
        if high <= low:
            return ()
        nodes = len(self.names)
        parts = self._workers if _follows_workers(self.names, self._workers) else nodes
        first = _part_index(low, self._count, parts)
        last = _part_index(high - 1, self._count, parts)
        if last - first + 1 >= nodes:
            return self.names
        return [
            self.names[i] for i in sorted(p % nodes for p in range(first, last + 1))
        ]
