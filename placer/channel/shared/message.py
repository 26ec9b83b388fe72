"""Messages of the shared carrier on the receiving side.

A small message lies in the frame that it came in. A large one is a `Parcel`: its blocks
are told of one by one, and stay where they lie until somebody wants them: `collect`
copies them into arrays, `pieces` passes them on in place. Who waits for something that
comes later has them put aside, into the arena, so that the ring has room for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placer.channel import payload
from placer.channel.message import MESSAGE_COST, Letter, Wait
from placer.channel.protocol import Array, Key, Piece
from placer.channel.shared.header import Contents
from placer.channel.shared.layout import Cut, Type, in_array, in_block, layout
from placer.memory.arena import Arena


@dataclass(eq=False, slots=True)
class Small(Letter):
    """A message that came in one frame, which comes in the pieces of its types."""

    def pieces(self, wait: Wait) -> Iterator[Piece]:
        """The arrays, cut as if they lay in blocks."""
        flat = [array.reshape(-1) for array in self.arrays]
        types = tuple((array.dtype, array.shape) for array in self.arrays)
        for cuts in layout(types):
            for cut in cuts:
                yield cut.array, cut.first, in_array(flat[cut.array], cut)


def small(
    source: str,
    contents: Contents,
    data: memoryview[int],
    views: Mapping[int, Array],
) -> Small:
    """A message whose arrays lie in `data`, or are the `views` of shared memory."""
    offsets = contents.offsets
    arrays: list[Array] = [
        views[i] if i in views
        else np.ndarray(shape, dtype, data, offsets[i])
        for i, (dtype, shape) in enumerate(contents.arrays.types)
    ]  # fmt: skip
    cost = contents.carried + MESSAGE_COST
    return Small(source, contents.key, arrays, contents.arrays.total, cost)


class Parcel:
    """A message whose payload comes through the ring.

    `take` gives the bytes of a block of the ring, `release` gives the block back and
    says whether it was the message's last.
    """

    def __init__(
        self,
        source: str,
        contents: Contents,
        views: Mapping[int, Array],
        arena: Arena,
        take: Callable[[int], Array],
        release: Callable[[int, bool], None],
    ) -> None:
        self.source = source
        self.key: Key = contents.key
        self.number = contents.number
        self.nbytes = contents.arrays.total
        self.cost = contents.carried + MESSAGE_COST
        self._contents = contents
        self._views = views
        self._arena = arena
        self._take = take
        self._release = release
        self._layout = layout(contents.arrays.types)
        self._blocks = carried_blocks(contents.arrays.types, views)
        self._came: list[int] = []  # blocks of the ring, in order
        self._lock = threading.Lock()  # guards what follows
        self._done = 0  # of those that came: copied, passed on or discarded
        self._arrays: list[Array] | None = None
        self._flat: list[Array] = []
        self._aside = False  # what comes is copied at once
        self._discarded = False

    @property
    def whole(self) -> bool:
        """Whether all blocks have come."""
        return len(self._came) == len(self._blocks)

    def add(self, block: int) -> None:
        """The next block has come, in this block of the ring."""
        self._came.append(block)
        if self._aside or self._discarded:
            with self._lock:
                self._move()

    def collect(
        self, out: Sequence[Array | None] | None, what: Callable[[], str], wait: Wait
    ) -> list[Array]:
        """Copy the blocks to where they belong as they come."""
        with self._lock:
            arrays = self._prepare(out)
        copied = 0
        while copied < len(self._blocks):
            wait(self._come(copied + 1))
            with self._lock:
                self._move()
                copied = self._done
        return payload.fill(out, arrays, what)

    def pieces(self, wait: Wait) -> Iterator[Piece]:
        """Pass the pieces on from where they lie."""
        flat = {i: view.reshape(-1) for i, view in self._views.items()}
        carried = 0
        held: int | None = None
        try:
            for cuts in self._layout:
                block = None
                if not all(cut.array in flat for cut in cuts):
                    carried += 1
                    wait(self._come(carried))
                    with self._lock:
                        if self._done < carried:  # else it was put aside
                            held = self._came[self._done]
                            self._done += 1
                            block = self._take(held)
                for cut in cuts:
                    if cut.array in flat:
                        piece = in_array(flat[cut.array], cut)
                    elif block is not None:
                        dtype, _ = self._contents.arrays.types[cut.array]
                        piece = in_block(block, cut, dtype)
                    else:
                        piece = in_array(self._flat[cut.array], cut)
                    yield cut.array, cut.first, piece
                if held is not None:
                    freed, held = held, None
                    self._release(freed, carried == len(self._blocks))
        finally:
            if held is not None:
                self._release(held, carried == len(self._blocks))
            with self._lock:
                self._discarded = True
                self._move()

    def settle(self) -> None:
        """Copy into the arena what has come and what will, so that the ring is free."""
        with self._lock:
            self._prepare(None)
            self._aside = True
            self._move()

    def _come(self, blocks: int) -> Callable[[], bool]:
        return lambda: len(self._came) >= blocks

    def _prepare(self, out: Sequence[Array | None] | None) -> list[Array]:
        if self._arrays is None:
            self._arrays = _space(self._contents, self._views, self._arena, out)
            self._flat = [array.reshape(-1) for array in self._arrays]
        return self._arrays

    def _move(self) -> None:
        """Empty the blocks that have come; called with the lock held."""
        while self._done < len(self._came):
            number = self._came[self._done]
            if not self._discarded:
                block = self._take(number)
                for cut in self._blocks[self._done]:
                    array = self._flat[cut.array]
                    np.copyto(in_array(array, cut), in_block(block, cut, array.dtype))
            self._done += 1
            self._release(number, self._done == len(self._blocks))


def carried_blocks(
    types: tuple[Type, ...], placed: Mapping[int, object]
) -> list[tuple[Cut, ...]]:
    """The blocks of a message that go through the ring: what is not placed elsewhere."""
    if not placed:
        return list(layout(types))
    blocks = [
        tuple(cut for cut in cuts if cut.array not in placed) for cuts in layout(types)
    ]
    return [cuts for cuts in blocks if cuts]


def _space(
    contents: Contents,
    views: Mapping[int, Array],
    arena: Arena,
    out: Sequence[Array | None] | None,
) -> list[Array]:
    """The arrays of a message: its views, the others to be written to."""
    if not views:
        return payload.space(contents.arrays.types, arena, out)
    rest = [i for i in range(len(contents.arrays.types)) if i not in views]
    fits = out is not None and len(out) == len(contents.arrays.types)
    given = [out[i] for i in rest] if out is not None and fits else None
    arrays = dict(views)
    types = [contents.arrays.types[i] for i in rest]
    arrays.update(zip(rest, payload.space(types, arena, given), strict=True))
    return [arrays[i] for i in range(len(contents.arrays.types))]
