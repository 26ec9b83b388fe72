"""Sending and receiving the edges of a plan: values become messages and values again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from placer.build.plan import Edge, Moved
from placer.channel.protocol import Channel, Key
from placer.errors import RunError
from placer.layouts.conversions import Piece, pieces
from placer.memory.arena import Arena
from placer.tables.half_sums import is_half

Array = npt.NDArray[Any]


@dataclass(slots=True)
class Exchange:
    """One node's end of all edges.

    What a node sends to itself never meets the channel. Blocks of a parameter that is
    used whole are received side by side into one buffer, so that putting them together
    copies nothing: `_wholes` are these buffers by name, `_wholes_at` by address.
    """

    node: str
    channel: Channel
    edges: Mapping[int, Edge]
    workers: int
    arena: Arena = field(default_factory=Arena)
    _own: dict[tuple[Key, int], list[Array]] = field(default_factory=dict)
    _wholes: dict[str, Array] = field(default_factory=dict)
    _wholes_at: dict[int, Array] = field(default_factory=dict)
    _known: dict[tuple[int, str, int], tuple[Piece, ...]] = field(default_factory=dict)

    def send(self, key: Key, values: Sequence[Any], count: int) -> None:
        """Send an edge's values to every target that needs a piece of them.

        `values` are arrays, or None where this node has no part; `count` is the number
        of rows of the global batch.
        """
        edge = self.edges[key.edge]
        arrays = [None if value is None else np.asarray(value) for value in values]
        for target in edge.targets:
            message: list[Array] = []
            for i, (moved, array) in enumerate(zip(edge.values, arrays, strict=True)):
                for piece in self._pieces(edge, moved, target, count):
                    if piece.source != self.node:
                        continue
                    assert array is not None, (moved.operand, self.node)
                    cut = _cut(array, moved, piece)
                    if target == self.node:
                        self._own.setdefault((key, i), []).append(cut)
                    else:
                        message.append(cut)
            if message:
                self.channel.send(target, key, message)

    def receive(self, key: Key, count: int) -> tuple[Array, ...]:
        """Wait for an edge's values and put their pieces together."""
        edge = self.edges[key.edge]
        needed = [self._pieces(edge, moved, self.node, count) for moved in edge.values]
        targets = [
            self._target(moved, found, count)
            for moved, found in zip(edge.values, needed, strict=True)
        ]
        parts: dict[tuple[int, int], Array] = {}  # by value, and piece of it
        for source in edge.sources:
            wanted = [
                (i, j, piece)
                for i, found in enumerate(needed)
                for j, piece in enumerate(found)
                if piece.source == source
            ]
            if source == self.node:
                arrays = [
                    cut
                    for i in dict.fromkeys(i for i, _, _ in wanted)
                    for cut in self._own.pop((key, i))
                ]
            elif wanted:
                out = [_space(targets[i], edge.values[i], p) for i, _, p in wanted]
                arrays = list(self.channel.receive(source, key, out=out))
                if len(arrays) != len(wanted):
                    raise _unlike(key, source)
            else:
                continue
            for (i, j, _), array in zip(wanted, arrays, strict=True):
                parts[i, j] = array
        return tuple(
            _joined(target, moved, [(p, parts[i, j]) for j, p in enumerate(found)])
            for i, (moved, found, target) in enumerate(
                zip(edge.values, needed, targets, strict=True)
            )
        )

    def chunks(self, key: Key) -> Iterator[tuple[str, int, list[Array]]]:
        """An edge's values as they come, put together by nobody: the value's name, the
        first element, and a flat view of the elements from there on for each source, in
        the order of the sources. A view is valid until the next ones are asked for."""
        edge = self.edges[key.edge]
        streams = [self.channel.pieces(source, key) for source in edge.sources]
        for parts in zip_longest(*streams):
            index, start = parts[0][:2] if parts[0] else (len(edge.values), 0)
            for source, part in zip(edge.sources, parts, strict=True):
                if index >= len(edge.values) or not part or part[:2] != (index, start):
                    raise _unlike(key, source)
            yield edge.values[index].result, start, [view for _, _, view in parts]

    def assemble(self, blocks: Sequence[Array], shape: tuple[int, ...]) -> Array:
        """The parameter that these blocks, in order, are the flat pieces of."""
        ends = start = _address(blocks[0])
        whole = self._wholes_at.get(start)
        if whole is not None:
            for block in blocks:
                if _address(block) != ends:
                    break
                ends += block.nbytes
            else:
                if ends == start + whole.nbytes:
                    return whole.reshape(shape)
        return np.concatenate([block.reshape(-1) for block in blocks]).reshape(shape)

    def new_step(self) -> None:
        """Forget the buffers of the last step; arrays in use keep theirs alive."""
        self._wholes.clear()
        self._wholes_at.clear()

    def _pieces(
        self, edge: Edge, moved: Moved, target: str, count: int
    ) -> tuple[Piece, ...]:
        # By identity: the plan keeps what it holds.
        key = id(moved), target, count
        found = self._known.get(key)
        if found is None:
            ways = moved.layouts, edge.sources, edge.targets
            found = pieces(*ways, target, count, self.workers)
            self._known[key] = found
        return found

    def _target(self, moved: Moved, found: Sequence[Piece], count: int) -> Array | None:
        """The buffer that pieces are put into; None where one piece is the value."""
        if moved.whole is not None and len(found) == 1:
            whole = self._wholes.get(moved.whole)
            if whole is None:
                whole = self.arena.take(moved.dtype, (moved.numel,))
                self._wholes[moved.whole] = whole
                self._wholes_at[_address(whole)] = whole
            (numel,) = moved.shape
            return whole[moved.at : moved.at + int(numel)]
        if len(found) == 1 and found[0].whole:
            return None
        shape = _local_shape(moved, found, count)
        array = self.arena.take(moved.dtype, shape)
        if not found or moved.layouts[1] == "P":
            array[...] = 0
        return array


def _unlike(key: Key, source: str) -> RunError:
    """What a node sent is not what the plan says that an edge carries."""
    return RunError(
        f"what {source} sent on {key} is not what the build says",
        hint="give every node of a run the same build",
    )


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _local_shape(moved: Moved, found: Sequence[Piece], count: int) -> tuple[int, ...]:
    sizes = [count if d == "batch" else int(d) for d in moved.shape]
    if moved.layouts[1] == "S":
        sizes[0] = max((p.into + p.high - p.low for p in found), default=0)
    return tuple(sizes)


def _cut(array: Array, moved: Moved, piece: Piece) -> Array:
    """The part of the sender's array that a piece is: a view."""
    if moved.start is not None:
        return array.reshape(-1)[moved.start : moved.stop]
    if piece.whole:
        return array
    return array[piece.offset : piece.offset + piece.high - piece.low]


def _adds(moved: Moved) -> bool:
    return moved.layouts[0] == "P"


def _space(target: Array | None, moved: Moved, piece: Piece) -> Array | None:
    """Where a received piece may be written at once: its own rows of the target."""
    if target is None or _adds(moved):
        return None
    if piece.whole:
        return target
    return target[piece.into : piece.into + piece.high - piece.low]


def _joined(
    target: Array | None, moved: Moved, parts: Sequence[tuple[Piece, Array]]
) -> Array:
    """The pieces put together in their order, which is the plan's (R2).

    Sums of halves are made in float32 and rounded once.
    """
    if target is None:
        return parts[0][1]
    if _adds(moved) and len(parts) > 1 and is_half(target.dtype):
        wide = np.empty(target.shape, np.float32)
        # Where floats overflow nothing is said, as in an update: the loss shows it.
        with np.errstate(over="ignore", invalid="ignore"):
            target[...] = _put(wide, moved, parts)
        return target
    return _put(target, moved, parts)


def _put(target: Array, moved: Moved, parts: Sequence[tuple[Piece, Array]]) -> Array:
    """Write the first of what is added up, add the others; other pieces lie apart."""
    begun: set[int] = set()
    for piece, array in parts:
        space = target
        if not piece.whole:
            space = target[piece.into : piece.into + piece.high - piece.low]
        if _adds(moved) and piece.into in begun:
            np.add(space, array, out=space)
        elif not (space is array or _same(space, array)):
            space[...] = array
        begun.add(piece.into)
    return target


def _same(a: Array, b: Array) -> bool:
    return a.shape == b.shape and a.size > 0 and _address(a) == _address(b)
