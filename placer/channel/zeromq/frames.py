"""The frames of the ZeroMQ transport, and the checks of those that arrive.

A node binds one PULL socket and connects one PUSH socket to each peer, so each
direction between two nodes is a connection of its own, on which frames stay in order.
A ZeroMQ message has one part, or two when payload bytes follow. The first part starts
with a frame header of 56 bytes, little-endian, without padding:

    bytes  field
    4      magic, b"PLC1"
    1      kind
    1      flags: 1 = answer a BEAT with a BEAT, a HELLO with a HELLO, at once;
           2 = the payload of this MESSAGE is in the first part, after the types
    2      source: index of the sending node in the sorted names of all nodes
    8      incarnation of the sending node: its start time, greater after a restart
    16     job: BLAKE2b-128 of the job's name
    8+8+8  a, b, c: unsigned, by kind

    kind       a                 b                c                rest of the first part
    1 HELLO    incarnation seen  0                0                msgpack `Hello`
    2 MESSAGE  sequence number   payload bytes    bytes in part 2  key and types
    3 CHUNK    sequence number   offset           bytes in part 2  -
    4 BEAT     last number sent  last number got  credit           -
    5 RESEND   first number lost 0                0                -
    6 GOODBYE  last number sent  0                0                -
    7 ABORT    0                 0                0                msgpack `Cause`

- HELLO is repeated until both nodes have seen each other's incarnation. It asks for an
  answer until its sender knows that it was seen.
- MESSAGE starts a message: it has the key (edge, step, microbatch as signed 64-bit
  integers), the types in msgpack and, in part 2, the first piece of the payload. There is no part 2 when the payload is empty, or has up to `INLINE` bytes and
  is at the end of the first part. CHUNKs have the rest, in order. Messages from one
  node to another are numbered from 1. The payload is the raw bytes of the arrays, in C
  order, without gaps.
- BEAT is both the heartbeat and the acknowledgement: b is the last message that has
  arrived whole, c (credit) the total of bytes (cost) that the program has received.
  Both only grow, so a BEAT that is lost or repeated does no harm.
- A receiver accepts only the next number and offset. A piece before it is a duplicate
  and is dropped. A piece after it shows a loss (a connection broke), and so does a BEAT
  whose a is greater than the last number received: the receiver sends RESEND, and the
  sender sends every unacknowledged message from that number on again. So each message
  is received exactly once.
- GOODBYE is the last frame of a node that ended in good order.

No part is longer than `MAX_FRAME`; libzmq closes a connection that announces more
before it allocates memory for it. A frame that fails a check is dropped and counted as
refused: wrong magic, job, node, incarnation, kind or length, undecodable msgpack, a
dtype outside `payload.DTYPES`, more than `MAX_ARRAYS` arrays or `MAX_RANK` dimensions,
or shapes that do not add up to the payload or exceed the maximum. The name of the job
is a shared secret, as far as it cannot be guessed. Frames are neither encrypted nor
signed, so only loopback addresses are allowed. Nothing on the wire is ever executed: no
pickle.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from placer.channel.frame_bodies import (
    ArrayTypes,
    InvalidFrame,
    encode_types,
    read_types,
)
from placer.channel.payload import CHUNK, Chunk
from placer.channel.types import Array, Key

MAGIC: Final = b"PLC1"
HEADER: Final = struct.Struct("<4sBBHQ16sQQQ")
KEY: Final = struct.Struct("<qqq")
"""Edge, step and microbatch of a message."""
MAX_FRAME: Final = CHUNK + 4096
"""Bytes of a part at most."""
MAX_BODY: Final = CHUNK
"""Bytes of a first part after the header at most."""
ANSWER: Final = 1
"""Flag: answer at once."""
INLINED: Final = 2
"""Flag: the payload is in the first part."""
INLINE: Final = 8 << 10
"""Bytes of a payload in the first part at most."""


Parts = tuple[Chunk, ...]
"""The parts of a ZeroMQ message."""


class Kind(IntEnum):
    """The kind of a frame; the numbers are on the frames."""

    HELLO = 1
    MESSAGE = 2
    CHUNK = 3
    BEAT = 4
    RESEND = 5
    GOODBYE = 6
    ABORT = 7


_KINDS: Final = {int(kind): kind for kind in Kind}


class Header(NamedTuple):
    """The decoded frame header."""

    kind: Kind
    flags: int
    source: int
    incarnation: int
    a: int
    b: int
    c: int


class Stamp(NamedTuple):
    """The fields of a header that are the same in all frames of a node."""

    source: int
    incarnation: int
    job: bytes

    def header(
        self, kind: Kind, a: int = 0, b: int = 0, c: int = 0, flags: int = 0
    ) -> bytes:
        """Return the 56 bytes of a frame header."""
        return HEADER.pack(
            MAGIC, kind, flags, self.source, self.incarnation, self.job, a, b, c
        )


def job_digest(job: str) -> bytes:
    """Return the 16 bytes that identify the job in every header."""
    return hashlib.blake2b(job.encode(), digest_size=16).digest()


def read_header(frame: bytes, job: bytes) -> Header:
    """Check and decode the header of a first part; raises InvalidFrame."""
    if not HEADER.size <= len(frame) <= HEADER.size + MAX_BODY:
        raise InvalidFrame("length")
    magic, kind, flags, source, incarnation, digest, a, b, c = HEADER.unpack_from(frame)
    if magic != MAGIC or digest != job:
        raise InvalidFrame("magic or job")
    known = _KINDS.get(kind)
    if known is None:
        raise InvalidFrame("kind")
    return Header(known, flags, source, incarnation, a, b, c)


def body(frame: bytes) -> memoryview[int]:
    """Return what follows the header of a first part."""
    return memoryview(frame)[HEADER.size :]


def encode_contents(key: Key, arrays: list[Array]) -> bytes:
    """Return the body of a MESSAGE of arrays that passed `payload.check_arrays`."""
    encoded = KEY.pack(*key) + encode_types(arrays)
    # An array needs 49 bytes at most: 32 dimensions whose product is bounded need 44.
    assert len(encoded) <= MAX_BODY
    return encoded


def message_frames(
    stamp: Stamp, number: int, contents: bytes, chunks: Sequence[Chunk]
) -> list[Parts]:
    """Return the frames of a message: MESSAGE, and a CHUNK for each further chunk."""
    total = sum(len(chunk) for chunk in chunks)
    if 0 < total <= INLINE:
        header = stamp.header(Kind.MESSAGE, number, total, 0, INLINED)
        return [(b"".join((header, contents, *chunks)),)]
    offset = len(chunks[0]) if chunks else 0
    header = stamp.header(Kind.MESSAGE, number, total, offset)
    frames: list[Parts] = [(header + contents, *chunks[:1])]
    for chunk in chunks[1:]:
        frames.append((stamp.header(Kind.CHUNK, number, offset, len(chunk)), chunk))
        offset += len(chunk)
    return frames


def read_contents(
    frame: bytes | memoryview, nbytes: int, maximum: int
) -> tuple[Key, ArrayTypes]:
    """Decode the contents of a MESSAGE frame, with `nbytes` of payload.

    Raises InvalidFrame when they are malformed, do not match `nbytes`, or are over the
    `maximum`. Nothing is allocated before.
    """
    if len(frame) < HEADER.size + KEY.size:
        raise InvalidFrame("length")
    arrays = read_types(bytes(frame[HEADER.size + KEY.size :]))
    if nbytes > maximum:
        raise InvalidFrame("over the maximum")
    if arrays.total != nbytes:
        raise InvalidFrame("sizes do not add up")
    return Key._make(KEY.unpack_from(frame, HEADER.size)), arrays
