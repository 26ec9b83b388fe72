"""Sends and receives the edges of a plan whose values are in ranges (layout F).

In a reduce-scatter (P to F), each node sums its range. In an all-gather (F to R), every node
receives all ranges. All ranges from one node to another travel in one message. Sums are
computed chunk by chunk, directly from shared memory if possible.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest

import numpy as np

from placer.channel.interface import Array, Channel, Key
from placer.errors import RunError
from placer.place.layouts.ranges import Ranges
from placer.plan.plan import Edge
from placer.runtime.exchange.staging import Staging
from placer.system.memory import aligned
from placer.system.memory.arena import Arena
from placer.tables.half_sums import add_up, dtype_of_sums

Chunk = tuple[int, int, list[Array]]
"""The index of a value, the index of the chunk's first element, and flat views of the chunk from
each node that holds a part, in the order of the nodes.
"""


@dataclass(frozen=True)
class RangeEdge:
    """The ranges of an edge's values, by the nodes that own them."""

    edge: Edge

    @cached_property
    def owners(self) -> tuple[str, ...]:
        """The nodes that own the ranges."""
        is_sum = self.edge.values[0].layouts[1] == "F"
        return self.edge.targets if is_sum else self.edge.sources

    @cached_property
    def ranges(self) -> tuple[Ranges, ...]:
        """The ranges of each value."""
        return tuple(map(self.edge.ranges, self.edge.values))

    @cached_property
    def of_owner(self) -> Mapping[str, Sequence[tuple[int, int, int]]]:
        """The non-empty ranges of each node: value index, and elements [low, high)."""
        found: dict[str, list[tuple[int, int, int]]] = {n: [] for n in self.owners}
        for index, ranges in enumerate(self.ranges):
            for part, low, high in ranges.owned():
                found[self.owners[part]].append((index, low, high))
        return found

    @cached_property
    def is_paced(self) -> bool:
        """Whether every node that owns ranges of the sums also sends terms of the sums."""
        return {*self.edge.sources} >= {*self.edge.targets}

    @cached_property
    def owner_of_all(self) -> Mapping[int, str]:
        """The node that owns all elements of a value, by the index of the value."""
        return {
            index: owner
            for owner, ranges in self.of_owner.items()
            for index, low, high in ranges
            if high - low == self.ranges[index].numel
        }

    def local_size(self, index: int, node: str) -> int:
        """Return the number of elements of a value that a node owns."""
        low, high = self.ranges[index].of(self.owners.index(node))
        return high - low


@dataclass(slots=True)
class RangeExchange:
    """A node's side of the edges with ranges.

    Values that a node sends to itself do not pass through the channel.
    """

    node: str
    channel: Channel
    arena: Arena
    _edges: dict[int, RangeEdge] = field(default_factory=dict)
    _sent: dict[Key, list[Array]] = field(default_factory=dict)
    """The values that this node has sent, flat, until it has received the edge."""
    _sums: dict[int, list[Array]] = field(default_factory=dict)
    """For each edge, the memory of the sums of this node's ranges."""
    _staging: Staging = field(init=False)

    def __post_init__(self) -> None:
        self._staging = Staging(self.channel)

    def edge(self, edge: Edge) -> RangeEdge:
        if edge.id not in self._edges:
            self._edges[edge.id] = RangeEdge(edge)
        return self._edges[edge.id]

    def send(self, edge: Edge, key: Key, values: Sequence[Array]) -> None:
        """Send this node's values to the targets of an edge. Each target receives its
        ranges of the terms, or all ranges that this node owns. In a ring, this sends
        only the first message."""
        known = self.edge(edge)
        flat = [np.asarray(value).reshape(-1) for value in values]
        if self.node in edge.targets:
            self._sent[key] = flat
        if edge.ring:
            self._send_first(known, key, flat)
            return
        for target in edge.targets:
            message = self._message(known, flat, target)
            if message and target != self.node:
                self.channel.send(target, key, message)

    def receive(self, edge: Edge, key: Key) -> tuple[Array, ...]:
        """Wait for an edge's values; return this node's flat range of each, or whole values."""
        known = self.edge(edge)
        if edge.values[0].layouts[1] == "F":
            return self._receive_sums(known, key)
        return self._receive_all(known, key)

    def chunks(self, edge: Edge, key: Key) -> Iterator[Chunk]:
        """Receive an edge's values in chunks as they arrive, without joining them.

        Elements of sums are numbered from the start of this node's range, elements of
        gathered values from the start of the value. Views are valid until the next chunk is
        requested.
        """
        known = self.edge(edge)
        if edge.values[0].layouts[1] == "F":
            return self._chunks_of_sums(known, key)
        return self._chunks_of_all(known, key)

    def _message(
        self, known: RangeEdge, flat: Sequence[Array], target: str
    ) -> Sequence[Array]:
        if known.edge.values[0].layouts[1] == "F":
            parts = _cut(known, flat, target)
            if target == self.node or self.node not in known.owners:
                return parts
            # Staging is safe here: in each step, every node of the sums receives a message from
            # every other node.
            return self._staging.stage(known.edge.id, target, parts)
        return [flat[index] for index, _, _ in known.of_owner[self.node]]

    # Sums of ranges.

    def _receive_sums(self, known: RangeEdge, key: Key) -> tuple[Array, ...]:
        sums = self._sums_of(known)
        if known.edge.ring:
            self._reduce_in_ring(known, key, sums)
        else:
            for index, start, parts in self._chunks_of_sums(known, key):
                add_up(parts, sums[index][start : start + parts[0].size])
        return tuple(sums)

    def _chunks_of_sums(self, known: RangeEdge, key: Key) -> Iterator[Chunk]:
        sent = self._sent.pop(key, None)
        ranges, sources = known.of_owner[self.node], known.edge.sources
        if not ranges:
            return
        own = None if sent is None else _cut(known, sent, self.node)
        others = [source for source in sources if source != self.node]
        streams = [self.channel.pieces(source, key) for source in others]
        if not others:
            assert own is not None
            for (index, _, _), array in zip(ranges, own, strict=True):
                yield index, 0, [array]
            return
        for pieces in zip_longest(*streams):
            at, start = pieces[0][:2] if pieces[0] else (len(ranges), 0)
            for source, piece in zip(others, pieces, strict=True):
                if at >= len(ranges) or not piece or piece[:2] != (at, start):
                    raise mismatch(key, source)
            parts = [view for _, _, view in pieces]
            if own is not None:
                part = own[at][start : start + parts[0].size]
                parts.insert(sources.index(self.node), part)
            yield ranges[at][0], start, parts

    def _sums_of(self, known: RangeEdge) -> list[Array]:
        """Return the memory of the sums of this node's ranges, readable by local nodes.

        It is reused in the next step. That is safe if every owner also sends terms: a sum is
        written once all nodes have sent their terms, and a node sends terms only after it
        has used the sums of the previous step. Otherwise, the memory is new in each step.
        """
        edge = known.edge
        dtypes = [np.dtype(value.dtype) for value in edge.values]
        sizes = [known.local_size(i, self.node) for i in range(len(dtypes))]
        if not known.is_paced:
            return [
                self.arena.allocate(dtype, (size,))
                for dtype, size in zip(dtypes, sizes, strict=True)
            ]
        if edge.id not in self._sums:
            nbytes = [n * kind.itemsize for n, kind in zip(sizes, dtypes, strict=True)]
            offsets, total = aligned.aligned_offsets(nbytes)
            memory = self.channel.share(total) if total else np.empty(0, np.uint8)
            self._sums[edge.id] = [
                memory[offset : offset + size].view(kind)
                for offset, size, kind in zip(offsets, nbytes, dtypes, strict=True)
            ]
        return self._sums[edge.id]

    # Whole values from ranges.

    def _receive_all(self, known: RangeEdge, key: Key) -> tuple[Array, ...]:
        edge, own = known.edge, self._sent.pop(key, None)
        joined = self._targets(known)
        if edge.ring:
            assert own is not None
            _fill(known, joined, self.node, own)
            self._gather_in_ring(known, key, joined)
            return _shaped(edge, joined)
        for owner in known.owners:
            ranges = known.of_owner[owner]
            if not ranges:
                continue
            if owner == self.node and own is not None:
                _fill(known, joined, owner, own)
                continue
            spaces = [_space(joined[i], low, high) for i, low, high in ranges]
            arrays = self.channel.receive(owner, key, out=spaces)
            if len(arrays) != len(ranges):
                raise mismatch(key, owner)
            for (index, _, _), array in zip(ranges, arrays, strict=True):
                if joined[index] is None:
                    joined[index] = array
        return _shaped(edge, joined)

    def _targets(self, known: RangeEdge) -> list[Array | None]:
        """Return the arrays to join ranges in; None for a value that is used in place.
        A value can be used where its only owner stores it, if the edge is stable. Sums
        are not: their memory is reused in the next step (`_sums_of`)."""
        edge = known.edge
        has_views = edge.stable and not edge.ring
        return [
            None
            if has_views and i in known.owner_of_all
            else self.arena.allocate(value.dtype, (value.size,))
            for i, value in enumerate(edge.values)
        ]

    def _chunks_of_all(self, known: RangeEdge, key: Key) -> Iterator[Chunk]:
        own = self._sent.pop(key, None)
        for owner in known.owners:
            ranges = known.of_owner[owner]
            if owner == self.node and own is not None:
                for index, low, _ in ranges:
                    yield index, low, [own[index]]
            elif ranges:
                for at, start, view in self.channel.pieces(owner, key):
                    if at >= len(ranges):
                        raise mismatch(key, owner)
                    index, low, _ = ranges[at]
                    yield index, low + start, [view]

    # Rings. Node j ends up with chunk j. In step i of a reduce-scatter, node j sends the partial
    # sum of chunk j - i, and adds its term to chunk j - i - 1. So the sum of chunk j starts at
    # node j + 1. Sums of half floats stay in float32, and the last node rounds them. In step i of
    # an all-gather, node j sends chunk j - i + 1 and receives chunk j - i.

    def _send_first(self, known: RangeEdge, key: Key, flat: Sequence[Array]) -> None:
        chunk: Sequence[Array]
        if known.edge.values[0].layouts[1] == "F":
            chunk = _cut(known, flat, self._in_ring(known, -1))
        else:
            chunk = self._message(known, flat, self.node)
        if chunk:
            self.channel.send(self._in_ring(known, 1), key, chunk)

    def _reduce_in_ring(self, known: RangeEdge, key: Key, sums: list[Array]) -> None:
        own = self._sent.pop(key)
        before, after = self._in_ring(known, -1), self._in_ring(known, 1)
        for i in range(1, len(known.owners)):
            owner = self._in_ring(known, -i - 1)
            ranges = known.of_owner[owner]
            if not ranges:
                continue
            parts = _cut(known, own, owner)
            is_last = owner == self.node
            totals = (
                [sums[index] for index, _, _ in ranges]
                if is_last
                else [
                    self.arena.allocate(dtype_of_sums(part.dtype), part.shape)
                    for part in parts
                ]
            )
            for at, start, view in self.channel.pieces(before, key):
                if at >= len(parts):
                    raise mismatch(key, before)
                stop = start + view.size
                add_up([view, parts[at][start:stop]], totals[at][start:stop])
            if not is_last:
                self.channel.send(after, key, totals)

    def _gather_in_ring(
        self, known: RangeEdge, key: Key, joined: Sequence[Array | None]
    ) -> None:
        before, after = self._in_ring(known, -1), self._in_ring(known, 1)
        for i in range(1, len(known.owners)):
            owner = self._in_ring(known, -i)
            spaces = [
                _space(joined[index], low, high)
                for index, low, high in known.of_owner[owner]
            ]
            if not spaces:
                continue
            arrays = self.channel.receive(before, key, out=spaces)
            if len(arrays) != len(spaces):
                raise mismatch(key, before)
            if owner != after:
                self.channel.send(after, key, arrays)

    def _in_ring(self, known: RangeEdge, distance: int) -> str:
        """Return the node at a distance from this node in the ring."""
        position = known.owners.index(self.node) + distance
        return known.owners[position % len(known.owners)]


def _cut(known: RangeEdge, flat: Sequence[Array], owner: str) -> list[Array]:
    return [flat[index][low:high] for index, low, high in known.of_owner[owner]]


def _space(array: Array | None, low: int, high: int) -> Array | None:
    return None if array is None else array[low:high]


def _fill(
    known: RangeEdge, joined: list[Array | None], owner: str, own: Sequence[Array]
) -> None:
    for index, low, high in known.of_owner[owner]:
        space = _space(joined[index], low, high)
        if space is None:
            joined[index] = own[index]
        else:
            space[...] = own[index]


def _shaped(edge: Edge, joined: Sequence[Array | None]) -> tuple[Array, ...]:
    shaped = []
    for value, array in zip(edge.values, joined, strict=True):
        assert array is not None, value.result
        shaped.append(array.reshape([int(size) for size in value.shape]))
    return tuple(shaped)


def mismatch(key: Key, source: str) -> RunError:
    """Return the error for a message that does not fit its edge in the plan."""
    return RunError(
        f"the message from {source} on {key} does not fit the build",
        hint="give every node of a run the same build",
    )
