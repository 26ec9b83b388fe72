"""Sends and receives the edges of a plan: cuts values into messages, and joins them again."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np

from placer.channel.interface import Array, Channel, Key
from placer.channel.open_message import OpenMessage
from placer.place.layouts.moved_pieces import Conversion, Piece
from placer.plan.plan import Edge, EdgeValue
from placer.runtime.exchange.parts import array_to_send
from placer.runtime.exchange.range_exchange import RangeEdge, RangeExchange, mismatch
from placer.system.memory.aligned import address_of
from placer.system.memory.arena import Arena
from placer.tables.half_sums import dtype_of_sums


@dataclass(slots=True)
class Exchange:
    """A node's side of all edges.

    Values that a node sends to itself do not pass through the channel.

    Args:
        node: the name of the node.
        channel: the channel of the node.
        edges: the edges of the plan, by number.
        workers: the number of workers in the plan; they share the rows of a batch.
        arena: the memory of received values.
    """

    node: str
    channel: Channel
    edges: Mapping[int, Edge]
    workers: int
    arena: Arena = field(default_factory=Arena)
    _own_pieces: dict[Key, list[Array]] = field(default_factory=dict)
    """Values that this node has sent to itself and not received yet."""
    # The blocks of a parameter are received into adjacent parts of one buffer, so that
    # `assemble` copies nothing. A program passes blocks to `assemble` without names, so the
    # buffers are also stored by address.
    _buffers: dict[str, Array] = field(default_factory=dict)
    _buffers_by_address: dict[int, Array] = field(default_factory=dict)
    # `_expected` holds the arrays for values that may arrive before their step. If such a
    # value is joined from several blocks, its buffer is in `_ahead`, by step.
    _expected: dict[Key, list[Array | None]] = field(default_factory=dict)
    _ahead: dict[int, dict[str, Array]] = field(default_factory=dict)
    _piece_cache: dict[tuple[int, str, int], tuple[Piece, ...]] = field(
        default_factory=dict
    )
    _ranges: RangeExchange = field(init=False)

    def __post_init__(self) -> None:
        self._ranges = RangeExchange(self.node, self.channel, self.arena)

    def range_edge(self, edge: Edge) -> RangeEdge:
        """Return the ranges of an edge with values in layout F."""
        return self._ranges.edge(edge)

    def local_shapes(self, edge: Edge, count: int) -> list[tuple[int, ...]]:
        """Return the shapes of an edge's values on this node, for a batch of `count` rows."""
        if edge.is_flat and edge.values[0].layouts[1] == "F":
            known = self.range_edge(edge)
            return [
                (known.local_size(i, self.node),) for i, _ in enumerate(edge.values)
            ]
        if edge.is_flat:
            return [tuple(int(size) for size in value.shape) for value in edge.values]
        return [
            local_shape(value, self._pieces(edge, value, self.node, count), count)
            for value in edge.values
        ]

    def send(
        self,
        key: Key,
        values: Sequence[Any],
        count: int,
        targets: Sequence[str] | None = None,
    ) -> None:
        """Send an edge's values to every target that needs a piece of them.

        Args:
            key: the edge, step and microbatch.
            values: one array per value of the edge, a `Part` of one if the edge sends
                a range of its elements, or None if this node has no part.
            count: the number of rows that pass through the edge, on all nodes together.
            targets: the nodes to send to; by default all targets of the edge.
        """
        edge = self.edges[key.edge]
        if edge.is_flat:
            self._ranges.send(edge, key, values)
            return
        arrays = [
            None if value is None else array_to_send(value, planned)
            for value, planned in zip(values, edge.values, strict=True)
        ]
        for target in edge.targets if targets is None else targets:
            message = self._message(edge, arrays, target, count)
            if message and target == self.node:
                self._own_pieces[key] = message
            elif message:
                self.channel.send(target, key, message, follows=edge.follows)

    def begin_send(self, key: Key, values: Sequence[Array]) -> list[OpenMessage]:
        """Start sending whole values while they are still being written. See
        `Channel.begin_send`."""
        edge = self.edges[key.edge]
        return [
            self.channel.begin_send(target, key, self._message(edge, values, target, 0))
            for target in edge.targets
        ]

    def expect(self, key: Key) -> None:
        """Provide arrays for values of a later step, so that they may arrive early. The
        edge must have one source, which sends whole values."""
        if key in self._expected:
            return
        edge = self.edges[key.edge]
        (source,) = edge.sources
        if key.step not in self._ahead:
            self._ahead = {key.step: {}}
        buffers = self._ahead[key.step]
        spaces = [
            None if value.whole is None else self._space_in_whole(value, buffers)
            for value in edge.values
        ]
        self._expected[key] = spaces
        self.channel.expect(source, key, spaces)

    def _receive_expected(
        self, key: Key, spaces: Sequence[Array | None]
    ) -> tuple[Array, ...]:
        for whole in self._ahead.get(key.step, {}).values():
            self._buffers_by_address[address_of(whole)] = whole
        (source,) = self.edges[key.edge].sources
        arrays = self.channel.receive(source, key, out=spaces)
        if len(arrays) != len(spaces):
            raise mismatch(key, source)
        return tuple(arrays)

    def discard(self, key: Key) -> None:
        """Receive an edge's values from every source, and drop them."""
        self._expected.pop(key, None)
        for source in self.edges[key.edge].sources:
            for _ in self.channel.pieces(source, key):
                pass

    def _message(
        self, edge: Edge, arrays: Sequence[Array | None], target: str, count: int
    ) -> list[Array]:
        message: list[Array] = []
        for edge_value, array in zip(edge.values, arrays, strict=True):
            for piece in self._pieces(edge, edge_value, target, count):
                if piece.source == self.node:
                    assert array is not None, (edge_value.operand, self.node)
                    message.append(_rows_of(array, piece, piece.source_offset))
        return message

    def receive(
        self,
        key: Key,
        count: int,
        sources: Container[str] | None = None,
        factor: float = 1.0,
    ) -> tuple[Array, ...]:
        """Wait for an edge's values and join their pieces.

        Args:
            key: the edge, step and microbatch.
            count: the number of rows that pass through the edge, on all nodes together.
            sources: the nodes to receive from; by default all sources of the edge.
            factor: multiplies sums over the sources.

        Returns:
            One array per value of the edge.

        Raises:
            RunError: if a message does not fit the plan.
        """
        edge = self.edges[key.edge]
        if edge.is_flat:
            return self._ranges.receive(edge, key)
        if (spaces := self._expected.pop(key, None)) is not None:
            return self._receive_expected(key, spaces)
        needed = [
            self._pieces(edge, edge_value, self.node, count)
            for edge_value in edge.values
        ]
        targets = [
            self._target(edge_value, pieces, count)
            for edge_value, pieces in zip(edge.values, needed, strict=True)
        ]
        # Keys: index of the value, index of its piece.
        parts: dict[tuple[int, int], Array] = {}
        for source in edge.sources:
            wanted = [
                (i, j, piece)
                for i, pieces in enumerate(needed)
                for j, piece in enumerate(pieces)
                if piece.source == source
            ]
            if not wanted or (sources is not None and source not in sources):
                continue
            if source == self.node:
                arrays = self._own_pieces.pop(key)
            else:
                spaces = [_space(targets[i], edge.values[i], p) for i, _, p in wanted]
                arrays = self.channel.receive(source, key, out=spaces)
            if len(arrays) != len(wanted):
                raise mismatch(key, source)
            for (i, j, _), array in zip(wanted, arrays, strict=True):
                parts[i, j] = array
        return tuple(
            _join(
                target,
                edge_value,
                [(p, parts[i, j]) for j, p in enumerate(pieces) if (i, j) in parts],
                factor,
            )
            for i, (edge_value, pieces, target) in enumerate(
                zip(edge.values, needed, targets, strict=True)
            )
        )

    def receive_chunks(self, key: Key) -> Iterator[tuple[str, int, list[Array]]]:
        """Receive an edge's values in chunks as they arrive, without joining them.

        Yields, for each chunk, the name of the value, the index of the chunk's first
        element, and a flat view of the chunk from each source, in the order of the edge's
        sources. For values in ranges, only sources that hold the elements yield a view.
        Views are valid until the next chunk is requested.

        Raises:
            RunError: if messages do not fit the plan, or differ between sources.
        """
        edge = self.edges[key.edge]
        if edge.is_flat:
            for index, start, views in self._ranges.chunks(edge, key):
                yield edge.values[index].result, start, views
            return
        streams = [self.channel.pieces(source, key) for source in edge.sources]
        for parts in zip_longest(*streams):
            index, start = parts[0][:2] if parts[0] else (len(edge.values), 0)
            for source, part in zip(edge.sources, parts, strict=True):
                if index >= len(edge.values) or not part or part[:2] != (index, start):
                    raise mismatch(key, source)
            yield edge.values[index].result, start, [view for _, _, view in parts]

    def assemble(self, blocks: Sequence[Array], shape: tuple[int, ...]) -> Array:
        """Return a parameter of this shape from its consecutive flat blocks. This
        copies nothing if the blocks fill one receive buffer, in order."""
        end = start = address_of(blocks[0])
        whole = self._buffers_by_address.get(start)
        if whole is not None:
            for block in blocks:
                if address_of(block) != end:
                    break
                end += block.nbytes
            else:
                if end == start + whole.nbytes:
                    return whole.reshape(shape)
        return np.concatenate([block.reshape(-1) for block in blocks]).reshape(shape)

    def new_step(self) -> None:
        """Forget the buffers of the last step. The arena reuses memory only when no
        array refers to it. So values that a program still holds stay valid."""
        self._buffers.clear()
        self._buffers_by_address.clear()

    def _pieces(
        self, edge: Edge, edge_value: EdgeValue, target: str, count: int
    ) -> tuple[Piece, ...]:
        # `id` is a valid key because the plan keeps its objects alive.
        key = id(edge_value), target, count
        pieces = self._piece_cache.get(key)
        if pieces is None:
            places = edge_value.layouts, edge.sources, edge.targets
            pieces = Conversion(*places, count, self.workers).pieces_for(target)
            self._piece_cache[key] = pieces
        return pieces

    def _space_in_whole(
        self, edge_value: EdgeValue, buffers: dict[str, Array]
    ) -> Array:
        """Return the part of a joined value's buffer that holds a block. `buffers` maps
        names of joined values to buffers; a missing buffer is added."""
        assert edge_value.whole is not None
        whole = buffers.get(edge_value.whole)
        if whole is None:
            whole = self.arena.allocate(edge_value.dtype, (edge_value.numel,))
            buffers[edge_value.whole] = whole
            self._buffers_by_address[address_of(whole)] = whole
        (numel,) = edge_value.shape
        return whole[edge_value.at : edge_value.at + int(numel)]

    def _target(
        self, edge_value: EdgeValue, pieces: Sequence[Piece], count: int
    ) -> Array | None:
        """Return the array to join pieces in; None if a single piece is the whole value."""
        if edge_value.whole is not None and len(pieces) == 1:
            return self._space_in_whole(edge_value, self._buffers)
        if len(pieces) == 1 and pieces[0].is_whole:
            return None
        shape = local_shape(edge_value, pieces, count)
        array = self.arena.allocate(edge_value.dtype, shape)
        if not pieces or edge_value.layouts[1] == "P":
            array[...] = 0
        return array


def local_shape(
    edge_value: EdgeValue, pieces: Sequence[Piece], count: int
) -> tuple[int, ...]:
    sizes = [count if d == "batch" else int(d) for d in edge_value.shape]
    if edge_value.layouts[1] == "S":
        sizes[0] = max((p.target_offset + p.high - p.low for p in pieces), default=0)
    return tuple(sizes)


def _rows_of(array: Array, piece: Piece, offset: int) -> Array:
    """Return the rows of a piece, starting at `offset`; all rows if the piece is whole."""
    return array if piece.is_whole else array[offset : offset + piece.high - piece.low]


def _is_sum(edge_value: EdgeValue) -> bool:
    return edge_value.layouts[0] == "P"


def _space(target: Array | None, edge_value: EdgeValue, piece: Piece) -> Array | None:
    """Return the part of the target that a piece is received into; None if pieces are added."""
    if target is None or _is_sum(edge_value):
        return None
    return _rows_of(target, piece, piece.target_offset)


def _join(
    target: Array | None,
    edge_value: EdgeValue,
    parts: Sequence[tuple[Piece, Array]],
    factor: float,
) -> Array:
    """Join the pieces of a value, or add them and multiply the sum by a factor. Pieces
    are added in the order of the plan, so a sum has the same bits in every run. Half
    floats are added and multiplied in float32, and the result is rounded once."""
    if target is None:
        return parts[0][1]
    if not _is_sum(edge_value):
        return _write_pieces(target, edge_value, parts)
    kind = dtype_of_sums(target.dtype)
    total = target if target.dtype == kind else np.zeros(target.shape, kind)
    # Do not warn about an overflow, as in an update: the loss shows it.
    with np.errstate(over="ignore", invalid="ignore"):
        _write_pieces(total, edge_value, parts)
        if factor != 1:
            total *= factor
        if total is not target:
            target[...] = total
    return target


def _write_pieces(
    target: Array, edge_value: EdgeValue, parts: Sequence[tuple[Piece, Array]]
) -> Array:
    """Write pieces into `target`. The pieces of a sum share a range: the first piece is
    written, and the next pieces are added."""
    written: set[int] = set()
    for piece, array in parts:
        space = _rows_of(target, piece, piece.target_offset)
        if _is_sum(edge_value) and piece.target_offset in written:
            np.add(space, array, out=space)
        elif not (space is array or _is_same_memory(space, array)):
            space[...] = array
        written.add(piece.target_offset)
    return target


def _is_same_memory(a: Array, b: Array) -> bool:
    # Empty arrays may have any address.
    return a.shape == b.shape and a.size > 0 and address_of(a) == address_of(b)
