"""Messages that a played node sends, as frames, and their usual content."""

from __future__ import annotations

from typing import Any

import numpy as np

from placer.channel import frames
from placer.channel.contents import describe_arrays
from placer.channel.frames import Beat, Memory, Piece, Reference, encode
from placer.channel.interface import Key
from placer.channel.outgoing import Outgoing
from placer.channel.pieces import PIECE
from placer.channel.pool import MAX_CHUNKS
from placer.channel.session import Session

LARGE = 2 * PIECE
HUGE = 6 * PIECE
"""Bytes of messages: of two pieces, and of more than are sent unasked."""
POOL = MAX_CHUNKS * PIECE
BEAT = encode(Beat())

Sent = list[bytes | int]
"""Frames, and file descriptors that go with the next frame."""

_CONTENT = np.resize(np.arange(251, dtype=np.uint8), 2 * POOL)


def content(nbytes: int, first: int = 0) -> np.ndarray[Any, Any]:
    """Return bytes of the usual content, without the first ones."""
    return _CONTENT[first : first + nbytes]


def raw(head: bytes, payload: int = 0, *, magic: bytes = frames.MAGIC) -> bytes:
    """Return a frame of any bytes, whose payload of so many bytes does not follow."""
    padding = bytes(-(frames.PREFIX.size + len(head)) % 64)
    return frames.PREFIX.pack(magic, len(head), payload) + head + padding


def packed(kind: str, *fields: object) -> bytes:
    """Return a frame of this kind with any fields."""
    return raw(frames.to_msgpack([kind, *fields]))


def message(
    number: int, nbytes: int, reference: tuple[int, int] | None = None
) -> bytes:
    """Return the header of a message of one array of bytes, which has it if it is small."""
    arrays = [content(nbytes)]
    references = () if reference is None else (Reference(0, *reference),)
    contents = describe_arrays(arrays, references)
    header = frames.Message(
        number, "b:0", "a:0", Key(1, 1), contents.encoded, references
    )
    return Outgoing(header, contents, arrays, 0, 0).head()


def piece(number: int, index: int, nbytes: int = PIECE) -> bytes:
    """Return a piece of such a message."""
    body = content(nbytes, index * PIECE).tobytes()
    return encode(Piece(number, index, nbytes)) + body


def chunk(number: int, index: int, at: int) -> bytes:
    """Return a piece that is in a chunk of the pool."""
    return encode(Piece(number, index, chunk=at))


def memory(region: int, nbytes: int) -> bytes:
    """Return the frame that announces shared memory."""
    return encode(Memory(region, nbytes))


def beat(**fields: int) -> bytes:
    """Return a heartbeat."""
    return encode(Beat(**fields))


def receive_sizes(channel: Session, *sizes: int) -> None:
    """Receive messages of b:0 that have these sizes and the usual content."""
    for nbytes in sizes:
        (got,) = channel.receive("b:0", Key(1, 1))
        assert np.array_equal(got, content(nbytes))
