"""Received messages, from their arrival until the program consumes them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from placer.channel import frames, payload
from placer.channel.contents import Contents
from placer.channel.pieces import (
    PIECE,
    Fragment,
    in_array,
    in_piece,
    piece_bytes,
    piece_layout,
)
from placer.channel.types import Array, Bytes, Key, Piece
from placer.system.memory.aligned import ALIGNMENT
from placer.system.memory.arena import Arena

MESSAGE_COST = 64
"""The cost of a message besides its payload, in bytes. It bounds the number of empty messages."""
AHEAD: Final = 8
"""The number of pieces to send ahead of the piece that the program uses."""

Wait = Callable[[Callable[[], bool]], None]
"""Blocks until the predicate is true. The predicate is called with the mailbox locked."""


@dataclass(eq=False, slots=True)
class Message:
    """A message whose arrays have all arrived.

    A message may be in the mailbox as soon as its header has arrived; the methods of a
    subclass then wait for its payload. The thread that receives the message consumes it.
    Any thread may call `place` at any time.

    Attributes:
        source: the sending node.
        to: the receiving node.
        key: the key of the message.
        nbytes: the bytes of the payload.
        copied_nbytes: the bytes of the payload that take credit of the source. Arrays
            that are passed on between processes without a copy take none.
        arrays: the arrays.
    """

    source: str
    to: str
    key: Key
    nbytes: int
    copied_nbytes: int
    arrays: list[Array]

    def collect(self, out: Sequence[Array | None] | None, wait: Wait) -> list[Array]:
        """Return the arrays, written into `out` if given; `wait` blocks for missing
        data. Raises RunError if the arrays do not fit `out`."""
        return payload.fill_out(
            out, self.arrays, lambda: f"{self.key} from {self.source} to {self.to}"
        )

    def pieces(self, wait: Wait) -> Iterator[Piece]:
        types = tuple((array.dtype, array.shape) for array in self.arrays)
        for fragments in piece_layout(types):
            for part in fragments:
                flat = self.arrays[part.array].reshape(-1)
                yield part.array, part.first, flat[part.first :][: part.numel]

    def place(self, out: Sequence[Array | None] | None = None) -> None:
        """Receive the whole message before the program asks for it. The arrays of `out`
        that fit are used."""


class PiecedMessage(Message):
    """A message whose payload arrives in pieces, in the order of its layout.

    A piece arrives in a chunk of the sender's pool or over the connection. Once the program
    waits for the whole message (`collect`), pieces are written into its arrays. Before that,
    a piece stays in its chunk or in a buffer until `pieces` returns views of it.

    The sender may send `allowed` pieces before the program asks for the message. Later,
    `allow(pieces)` allows more. So a message that the program does not receive yet takes
    little memory, and does not block the connection for other messages.

    The thread that reads the connection calls `room` for the next piece, and `add` when the
    piece has arrived. One thread of the program consumes the message. A chunk or buffer is
    released exactly once, by the thread that removes it from `_held`.
    """

    def __init__(
        self,
        header: frames.Message,
        contents: Contents,
        views: Mapping[int, Array],
        allowed: int,
        allow: Callable[[int], None],
        arena: Arena,
    ) -> None:
        nbytes, copied_nbytes = contents.nbytes, contents.copied_nbytes
        super().__init__(
            header.source, header.to, header.key, nbytes, copied_nbytes, []
        )
        self._types = contents.types
        self._views = views  # the arrays in shared memory, by index
        self._layout = contents.pieces
        self.allowed = min(allowed, len(self._layout))
        self._allow = allow
        self._arena = arena
        self._lock = threading.Lock()  # guards the fields below
        self.arrived = 0
        self._consumed = 0  # pieces that `pieces` has returned
        # The place of each piece that is not in the arrays, and a function that frees the place.
        self._held: dict[int, tuple[Bytes, Callable[[], None]]] = {}
        self._spare: list[Bytes] = []
        self._discarded = False

    @property
    def is_complete(self) -> bool:
        return self.arrived == len(self._layout)

    # Called by the thread that reads the connection.

    def room(self) -> tuple[int, list[memoryview[int]]]:
        """Return the length of the next piece, and the views to receive it into."""
        index = self.arrived
        fragments = self._layout[index]
        nbytes = piece_bytes(fragments)
        with self._lock:
            self._free(index)  # left by a connection that broke during this piece
            if self.arrays and index >= self._consumed:
                return nbytes, self._array_views(fragments)
            buffer = self._hold_buffer(index)
            return nbytes, [buffer[:nbytes].data]

    def add(self, held: tuple[Bytes, Callable[[], None]] | None = None) -> None:
        """Record that the next piece has arrived. `held` is None if the piece was
        received into the views of `room`. Otherwise it is the piece's chunk and a
        function that returns the chunk."""
        with self._lock:
            if held is not None:
                self._held[self.arrived] = held
            self._settle(self.arrived)
            self.arrived += 1  # last, because the program reads it without the lock

    def empty_chunks(self) -> None:
        """Copy arrived pieces that are not in use out of their chunks."""
        with self._lock:
            for index in range(self._consumed, self.arrived):
                if index in self._held:
                    old, release = self._held.pop(index)
                    np.copyto(self._hold_buffer(index), old)
                    release()

    # Called by the program.

    def collect(self, out: Sequence[Array | None] | None, wait: Wait) -> list[Array]:
        self.place(out)
        wait(lambda: self.is_complete)
        return super().collect(out, wait)

    def pieces(self, wait: Wait) -> Iterator[Piece]:
        """Yield the pieces as views of their current place."""
        index = 0  # index of the next piece to be sent
        self._allow_up_to(AHEAD)
        try:
            for fragments in piece_layout(self._types):
                buffer = None
                is_sent = any(part.array not in self._views for part in fragments)
                sent = iter(self._layout[index] if is_sent else ())
                if is_sent:
                    wait(self._arrival_of(index + 1))
                    with self._lock:
                        self._consumed = index + 1
                        buffer, _ = self._held.get(index, (None, None))
                for part in fragments:
                    if part.array in self._views:
                        piece = in_array(self._views[part.array], part)
                    elif buffer is None:
                        piece = in_array(self.arrays[part.array], next(sent))
                    else:
                        piece = in_piece(buffer, next(sent))
                    dtype, _ = self._types[part.array]
                    yield part.array, part.first, piece.view(dtype)
                if is_sent:
                    # In this order, the frame that allows more pieces also returns chunks.
                    if index + 1 + AHEAD // 2 >= self.allowed:
                        self._allow_up_to(index + 1 + AHEAD)
                    with self._lock:
                        self._free(index)
                    index += 1
        finally:
            with self._lock:
                self._discarded = True
                for held in [i for i in self._held if i < self.arrived]:
                    self._free(held)
            self._allow_up_to(len(self._layout))

    def place(self, out: Sequence[Array | None] | None = None) -> None:
        """Allocate the arrays, move arrived pieces into them, and request the rest."""
        with self._lock:
            if not self.arrays and not self._discarded:
                self.arrays = payload.allocate(
                    self._types, self._arena, out, self._views
                )
                for index in range(self._consumed, self.arrived):
                    self._settle(index)
        self._allow_up_to(len(self._layout))

    def _arrival_of(self, count: int) -> Callable[[], bool]:
        return lambda: self.arrived >= count

    def _allow_up_to(self, count: int) -> None:
        count = min(count, len(self._layout))
        if count > self.allowed:
            self.allowed = count
            self._allow(count)

    # Called with the lock held.

    def _settle(self, index: int) -> None:
        """Move a piece into the arrays if they exist; drop it if the message is discarded."""
        if self._discarded:
            self._free(index)
        elif self.arrays and index in self._held:
            buffer, _ = self._held[index]
            for part in self._layout[index]:
                target = in_array(self.arrays[part.array], part)
                np.copyto(target, in_piece(buffer, part))
            self._free(index)

    def _hold_buffer(self, index: int) -> Bytes:
        """Return a buffer for a piece; freeing the piece makes the buffer reusable."""
        buffer = (
            self._spare.pop()
            if self._spare
            else self._arena.allocate(np.uint8, (PIECE,))
        )
        self._held[index] = buffer, lambda: self._spare.append(buffer)
        return buffer

    def _free(self, index: int) -> None:
        if index in self._held:
            self._held.pop(index)[1]()

    def _array_views(self, fragments: Sequence[Fragment]) -> list[memoryview[int]]:
        """Return the views that a piece is received into, including padding between arrays."""
        views = []
        for part in fragments:
            views.append(in_array(self.arrays[part.array], part).data)
            if padding := -part.nbytes % ALIGNMENT:
                views.append(memoryview(bytearray(padding)))
        return views
