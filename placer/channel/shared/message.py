"""Received messages of the shared-memory transport.

The payload of an `InlineMessage` is in the frame that it came in. That of a
`ChunkedMessage` arrives in chunks, which are announced one by one and stay in the
sender's chunk pool until the program consumes them: `collect` copies them into arrays,
and `pieces` returns views of them. A node that waits for a later message calls
`detach`, which copies the chunks into the arena, so that the pool has room for what it
waits for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placer.channel import payload
from placer.channel.message import Message, Wait
from placer.channel.shared.chunks import (
    chunk_layout,
    chunk_view,
    copied_chunks,
    in_array,
    in_chunk,
)
from placer.channel.shared.frames import Contents
from placer.channel.shared.region import Bytes
from placer.channel.types import Array, Piece
from placer.memory.arena import Arena


@dataclass(eq=False, slots=True)
class InlineMessage(Message):
    """A message that arrived whole, in one frame."""

    def pieces(self, wait: Wait) -> Iterator[Piece]:
        """Return the pieces in which a `ChunkedMessage` of the same types comes."""
        flat = [array.reshape(-1) for array in self.arrays]
        types = tuple((array.dtype, array.shape) for array in self.arrays)
        for fragments in chunk_layout(types):
            for part in fragments:
                yield part.array, part.first, in_array(flat[part.array], part)


class ChunkedMessage(Message):
    """A message whose payload arrives through the chunk pool of its source.

    `views` are the arrays in shared memory, by index. `pool` is the memory of the pool.
    `release(number, is_last)` returns a chunk of it to the sender; `is_last` is true
    for the message's last one.

    Ownership of chunks: the thread that reads the socket appends them with `add_chunk`.
    A consumer claims the next one by raising `_consumed` with the lock held, and
    releases it exactly once: `_consume_arrived` after it has copied the chunk, `pieces`
    once the program has asked for the piece after the last of the chunk.
    """

    def __init__(
        self,
        source: str,
        contents: Contents,
        views: Mapping[int, Array],
        arena: Arena,
        pool: Bytes,
        release: Callable[[int, bool], None],
    ) -> None:
        nbytes, copied_nbytes = contents.arrays.total, contents.copied_nbytes
        super().__init__(source, contents.key, nbytes, copied_nbytes, [])
        self._types = contents.arrays.types
        self._views = views
        self._arena = arena
        self._pool = pool
        self._release = release
        self._chunks = copied_chunks(self._types, views)
        self._arrived: list[int] = []  # numbers of chunks of the pool, in order
        self._lock = threading.Lock()  # guards what follows
        self._consumed = 0  # of those: copied, returned as pieces or discarded
        self._flat: list[Array] = []  # the arrays, flattened
        self._detached = False  # copy chunks as they arrive
        self._discarded = False  # release chunks without copying them

    def add_chunk(self, chunk: int) -> bool:
        """Record that the next chunk has arrived, in chunk `chunk` of the pool.

        Returns whether it is the last one.
        """
        # Append first, look at the flags second. `detach` sets its flag first and looks
        # at `_arrived` second, so at least one of the two sees this chunk; the lock and
        # `_consumed` ensure that only one copies it.
        self._arrived.append(chunk)
        if self._detached or self._discarded:
            with self._lock:
                self._consume_arrived()
        return len(self._arrived) == len(self._chunks)

    def collect(
        self, out: Sequence[Array | None] | None, what: Callable[[], str], wait: Wait
    ) -> list[Array]:
        """Return the arrays; copy the chunks into them as they arrive."""
        with self._lock:
            self._allocate(out)
        copied = 0
        while copied < len(self._chunks):
            wait(self._arrival_of(copied + 1))
            with self._lock:
                self._consume_arrived()
                copied = self._consumed
        return payload.fill_out(out, self.arrays, what)

    def pieces(self, wait: Wait) -> Iterator[Piece]:
        """Return the pieces as views of the pool, of shared memory, or of the arena."""
        flat = {i: view.reshape(-1) for i, view in self._views.items()}
        needed = 0
        in_use: int | None = None
        try:
            for fragments in chunk_layout(self._types):
                chunk = None
                if not all(fragment.array in flat for fragment in fragments):
                    needed += 1
                    wait(self._arrival_of(needed))
                    with self._lock:
                        if self._consumed < needed:  # else `detach` has copied it
                            in_use = self._arrived[self._consumed]
                            self._consumed += 1
                            chunk = chunk_view(self._pool, in_use)
                for part in fragments:
                    if part.array in flat:
                        piece = in_array(flat[part.array], part)
                    elif chunk is not None:
                        piece = in_chunk(chunk, part, self._types[part.array][0])
                    else:
                        piece = in_array(self._flat[part.array], part)
                    yield part.array, part.first, piece
                if in_use is not None:
                    released, in_use = in_use, None
                    self._release(released, needed == len(self._chunks))
        finally:
            if in_use is not None:
                self._release(in_use, needed == len(self._chunks))
            with self._lock:
                self._discarded = True
                self._consume_arrived()

    def detach(self) -> None:
        """Copy the chunks into the arena, now and as more arrive, to free the pool."""
        with self._lock:
            self._allocate(None)
            self._detached = True
            self._consume_arrived()

    def _arrival_of(self, count: int) -> Callable[[], bool]:
        """Return the predicate that `count` chunks have arrived."""
        return lambda: len(self._arrived) >= count

    def _allocate(self, out: Sequence[Array | None] | None) -> None:
        if not self.arrays:
            self.arrays = payload.allocate(self._types, self._arena, out, self._views)
            self._flat = [array.reshape(-1) for array in self.arrays]

    def _consume_arrived(self) -> None:
        """Copy or discard the chunks that have arrived; called with the lock held."""
        while self._consumed < len(self._arrived):
            number = self._arrived[self._consumed]
            if not self._discarded:
                chunk = chunk_view(self._pool, number)
                for part in self._chunks[self._consumed]:
                    flat = self._flat[part.array]
                    np.copyto(in_array(flat, part), in_chunk(chunk, part, flat.dtype))
            self._consumed += 1
            self._release(number, self._consumed == len(self._chunks))
