"""A received message whose payload comes in pieces, in the order of its layout.

A piece is received straight into the arrays of the message once the program waits for
all of it (`collect`), and else into a buffer of its own, which `pieces` returns views
of. Before the program asks for the message, its sender may send `EAGER` pieces; then as
many as `allow` says. So a message that nobody receives yet takes little memory, and does
not fill the connection that other messages of its sender need.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from placer.channel import payload
from placer.channel.message import Message, Wait
from placer.channel.payload import as_bytes
from placer.channel.shared.chunks import Fragment, chunk_layout, in_array, in_chunk
from placer.channel.tcp.frames import Contents
from placer.channel.types import Array, ArrayType, Piece
from placer.memory.aligned import ALIGNMENT, round_up
from placer.memory.arena import Arena

EAGER: Final = 4
"""Pieces of a message that are sent before its receiver asks for it."""
AHEAD: Final = 8
"""Pieces that are sent before the program has consumed the one it uses."""


@lru_cache(maxsize=256)
def piece_sizes(types: tuple[ArrayType, ...]) -> tuple[int, ...]:
    """Return the bytes of each piece of a message: its fragments, and padding up to a
    multiple of 64."""
    return tuple(
        last.offset + round_up(last.numel * types[last.array][0].itemsize)
        for *_, last in chunk_layout(types)
    )


class InlineMessage(Message):
    """A message that arrived whole, in one frame."""

    __slots__ = ()

    def pieces(self, wait: Wait) -> Iterator[Piece]:
        """Return the pieces in which a `PiecedMessage` of the same types comes."""
        flat = [array.reshape(-1) for array in self.arrays]
        types = tuple((array.dtype, array.shape) for array in self.arrays)
        for fragments in chunk_layout(types):
            for part in fragments:
                yield part.array, part.first, in_array(flat[part.array], part)


class PiecedMessage(Message):
    """A message whose payload arrives in pieces.

    The thread that reads the connection calls `room` for the next piece, and `add` when
    it has arrived. One thread of the program consumes the message. `allow(pieces)` tells
    the sender how many pieces it may send.
    """

    def __init__(
        self,
        source: str,
        contents: Contents,
        arena: Arena,
        allow: Callable[[int], None],
    ) -> None:
        nbytes = contents.arrays.total
        super().__init__(source, contents.key, nbytes, nbytes, [])
        self._types = contents.arrays.types
        self._arena = arena
        self._allow = allow
        self._layout = chunk_layout(self._types)
        self._sizes = piece_sizes(self._types)
        self._allowed = EAGER
        self._lock = threading.Lock()  # guards what follows
        self._arrived = 0
        self._consumed = 0  # pieces that `pieces` has returned
        self._buffers: dict[int, Array] = {}  # of pieces that are not in the arrays
        self._spare: list[Array] = []
        self._flat: list[Array] = []  # the arrays, flattened
        self._discarded = False

    @property
    def is_complete(self) -> bool:
        """Whether all pieces have arrived."""
        return self._arrived == len(self._layout)

    @property
    def arrived(self) -> int:
        """The number of pieces that have arrived."""
        return self._arrived

    @property
    def allowed(self) -> int:
        """The number of pieces that the sender may send."""
        return self._allowed

    # Called by the thread that reads the connection.

    def room(self) -> tuple[int, list[memoryview[int]]]:
        """Return the length of the next piece, and where to receive it."""
        index = self._arrived
        nbytes = self._sizes[index]
        with self._lock:
            self._recycle(index)  # of a connection that broke during this piece
            if self._flat and index >= self._consumed:
                return nbytes, self._views(self._layout[index])
            buffer = (
                self._spare.pop()
                if self._spare
                else self._arena.allocate(np.uint8, (payload.CHUNK,))
            )
            self._buffers[index] = buffer
            return nbytes, [buffer[:nbytes].data]

    def add(self) -> None:
        """Record that the next piece has arrived where `room` said."""
        with self._lock:
            index = self._arrived
            self._arrived += 1
            if self._discarded:
                self._recycle(index)
            elif self._flat and index in self._buffers:
                self._copy(index)

    # Called by the program.

    def collect(
        self, out: Sequence[Array | None] | None, what: Callable[[], str], wait: Wait
    ) -> list[Array]:
        """Return the arrays; the pieces are received into them."""
        self._place(out)
        wait(lambda: self.is_complete)
        return payload.fill_out(out, self.arrays, what)

    def pieces(self, wait: Wait) -> Iterator[Piece]:
        """Return the pieces as views of their buffers, or of the arrays."""
        try:
            for index, fragments in enumerate(self._layout):
                if index + AHEAD // 2 >= self._allowed:
                    self._allow_up_to(index + AHEAD)
                wait(self._arrival_of(index + 1))
                with self._lock:
                    self._consumed = index + 1
                    buffer = self._buffers.get(index)
                for part in fragments:
                    if buffer is None:
                        piece = in_array(self._flat[part.array], part)
                    else:
                        piece = in_chunk(buffer, part, self._types[part.array][0])
                    yield part.array, part.first, piece
                with self._lock:
                    self._recycle(index)
        finally:
            with self._lock:
                self._discarded = True
                for index in [i for i in self._buffers if i < self._arrived]:
                    self._recycle(index)
            self._allow_up_to(len(self._layout))

    def detach(self) -> None:
        """Receive all of the message into arrays, also while the program uses none of
        it: the sender may wait for that."""
        self._place(None)

    def _place(self, out: Sequence[Array | None] | None) -> None:
        """Allocate the arrays, move what has arrived there, and ask for the rest."""
        with self._lock:
            if not self.arrays and not self._discarded:
                self.arrays = payload.allocate(self._types, self._arena, out, {})
                self._flat = [array.reshape(-1) for array in self.arrays]
                for index in range(self._consumed, self._arrived):
                    self._copy(index)
        self._allow_up_to(len(self._layout))

    def _arrival_of(self, count: int) -> Callable[[], bool]:
        return lambda: self._arrived >= count

    def _allow_up_to(self, count: int) -> None:
        count = min(count, len(self._layout))
        if count > self._allowed:
            self._allowed = count
            self._allow(count)

    # Called with the lock held.

    def _copy(self, index: int) -> None:
        buffer = self._buffers[index]
        for part in self._layout[index]:
            flat = self._flat[part.array]
            np.copyto(in_array(flat, part), in_chunk(buffer, part, flat.dtype))
        self._recycle(index)

    def _recycle(self, index: int) -> None:
        buffer = self._buffers.pop(index, None)
        if buffer is not None:
            self._spare.append(buffer)

    def _views(self, fragments: Sequence[Fragment]) -> list[memoryview[int]]:
        """Return the parts of the arrays that a piece is received into, with a place for
        the padding between them."""
        views = []
        for part in fragments:
            view = as_bytes(in_array(self._flat[part.array], part)).data
            views.append(view)
            if padding := -len(view) % ALIGNMENT:
                views.append(_new_padding(padding))
        return views


def _new_padding(nbytes: int) -> memoryview[int]:
    return memoryview(bytearray(nbytes))
