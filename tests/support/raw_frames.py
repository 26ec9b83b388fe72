"""Messages that a played node sends, as frames, and their usual content."""

from __future__ import annotations

from typing import Any

import numpy as np

from placer.channel import frames
from placer.channel.frames import Kind, frame
from placer.channel.pieces import PIECE
from placer.channel.pool import MAX_CHUNKS
from placer.channel.protocol import Key
from placer.channel.session import Session

LARGE = 2 * PIECE
HUGE = 6 * PIECE
"""Bytes of messages: of two pieces, and of more than are sent unasked."""
POOL = MAX_CHUNKS * PIECE
BEAT = frame(Kind.BEAT)

Sent = list[bytes | int]
"""Frames, and file descriptors that go with the next frame."""

_CONTENT = np.resize(np.arange(251, dtype=np.uint8), 2 * POOL)


def content(nbytes: int, first: int = 0) -> np.ndarray[Any, Any]:
    """Return bytes of the usual content, without the first ones."""
    return _CONTENT[first : first + nbytes]


def message(
    number: int, nbytes: int, reference: tuple[int, int] | None = None
) -> bytes:
    """Return the MESSAGE of one array of bytes, inline if it is small."""
    arrays = [content(nbytes)]
    references = {} if reference is None else {0: reference}
    contents = frames.describe_arrays(Key(1, 1), arrays, references)
    return frames.message_frame(number, contents, arrays)


def piece(number: int, index: int, nbytes: int = PIECE) -> bytes:
    """Return a piece of such a message."""
    body = content(nbytes, index * PIECE).tobytes()
    return frame(Kind.PIECE, number, index, length=nbytes) + body


def chunk(number: int, index: int, at: int) -> bytes:
    """Return a piece that is in a chunk of the pool."""
    return frame(Kind.PIECE, number, index, at + 1)


def receive_sizes(channel: Session, *sizes: int) -> None:
    """Receive messages of b:0 that have these sizes and the usual content."""
    for nbytes in sizes:
        (got,) = channel.receive("b:0", Key(1, 1))
        assert np.array_equal(got, content(nbytes))
