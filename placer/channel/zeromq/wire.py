"""The frames that ZeroMQ channels exchange, and every check of what comes in.

A node binds one PULL socket and connects one PUSH socket to each peer, so each
direction between two nodes is a connection of its own, on which frames stay in order.
A ZeroMQ message has one part, or two when payload bytes follow. The first part starts
with a header of 56 bytes, little-endian, no padding:

    bytes  field
    4      magic, b"PLC1"
    1      kind
    1      flags: 1 = answer a BEAT with a BEAT, a HELLO with a HELLO, at once;
           2 = the payload of this MESSAGE follows its contents in the first part
    2      source: index of the sending node in the sorted names of all nodes
    8      incarnation of the sending node: its start, later ones are greater
    16     job: BLAKE2b-128 of the job's name
    8+8+8  a, b, c: unsigned, by kind

    kind       a                  b                c               rest of the first part
    1 HELLO    incarnation seen   0                0               msgpack `Hello`
    2 MESSAGE  sequence number    payload bytes    bytes in part 2 msgpack `Contents`
    3 CHUNK    sequence number    offset           bytes in part 2 -
    4 BEAT     last number sent   last number got  credit          -
    5 RESEND   first number lost  0                0               -
    6 GOODBYE  last number sent   0                0               -
    7 ABORT    0                  0                0               msgpack `Cause`

- HELLO is repeated until both sides have seen each other's incarnation; it asks for an
  answer until the sender knows that it was seen.
- MESSAGE opens a message and carries the first piece of its payload in part 2 (there is
  no part 2 when the payload is empty or, up to `INLINE` bytes, stands at the end of the
  first part); CHUNKs carry the rest, in order. Messages from
  one node to another are numbered from 1. The payload is the raw bytes of the arrays,
  in C order, without gaps.
- BEAT is the sign of life and the acknowledgement in one: b is the last message that
  was assembled whole, c the bytes (cost) that the program has received, all told. Both
  only ever grow, so a BEAT that is lost or repeated does no harm.
- A receiver takes the next number and offset only. What came before is a duplicate and
  is dropped; what lies beyond tells of a loss (a connection broke), as does a BEAT
  whose a was not reached: it asks with RESEND, and the sender repeats all that is not
  yet acknowledged from that number on. So a message is received exactly once.
- GOODBYE is the last frame of a node that ended in good order.

No part is longer than `MAX_FRAME`; libzmq cuts off a connection that announces more,
before it allocates. A frame that fails a check is dropped and counted as refused: wrong
magic, job, node, incarnation, kind or length, undecodable msgpack, a dtype outside
`payload.DTYPES`, more than `MAX_ARRAYS` arrays or `MAX_RANK` dimensions, or shapes that
do not add up to the payload or exceed the maximum. The job's name is a shared secret in
so far as it cannot be guessed; frames are neither encrypted nor signed, so addresses
are loopback only. Nothing on the wire is ever executed: no pickle.
"""

from __future__ import annotations

import hashlib
import struct
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec
import numpy as np

from placer.channel.payload import CHUNK, DTYPES
from placer.channel.protocol import Array, Key
from placer.channel.wire_bodies import Int64, Refused, Types, decode, sizes, types_of

MAGIC: Final = b"PLC1"
HEADER: Final = struct.Struct("<4sBBHQ16sQQQ")
MAX_FRAME: Final = CHUNK + 4096
MAX_BODY: Final = CHUNK
ANSWER: Final = 1
INLINED: Final = 2
INLINE: Final = 8 << 10


class Kind(IntEnum):
    """What a frame is; the numbers are on the wire."""

    HELLO = 1
    MESSAGE = 2
    CHUNK = 3
    BEAT = 4
    RESEND = 5
    GOODBYE = 6
    ABORT = 7


_KINDS: Final = {int(kind): kind for kind in Kind}


class Header(NamedTuple):
    """The fixed part of a frame."""

    kind: Kind
    flags: int
    source: int
    incarnation: int
    a: int
    b: int
    c: int


class Stamp(NamedTuple):
    """What a node puts on every frame: who it is, and of which job."""

    source: int
    incarnation: int
    job: bytes

    def header(
        self, kind: Kind, a: int = 0, b: int = 0, c: int = 0, flags: int = 0
    ) -> bytes:
        """The 56 bytes of a header."""
        return HEADER.pack(
            MAGIC, kind, flags, self.source, self.incarnation, self.job, a, b, c
        )


class Contents(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True
):
    """The address of a message, and the types of its arrays."""

    edge: Int64
    step: Int64
    microbatch: Int64
    arrays: Types

    @property
    def key(self) -> Key:
        return Key(self.edge, self.step, self.microbatch)

    @property
    def types(self) -> list[tuple[np.dtype[np.generic], tuple[int, ...]]]:
        """Dtype and shape of each array."""
        return [(DTYPES[code], shape) for code, shape in self.arrays]


_ENCODER = msgspec.msgpack.Encoder()
_CONTENTS = msgspec.msgpack.Decoder(Contents)


def job_digest(job: str) -> bytes:
    """The 16 bytes that stand for the job's name in every header."""
    return hashlib.blake2b(job.encode(), digest_size=16).digest()


def read_header(frame: bytes, job: bytes) -> Header:
    """Check and read the header of a first part; `Refused` when anything is off."""
    if not HEADER.size <= len(frame) <= HEADER.size + MAX_BODY:
        raise Refused("length")
    magic, kind, flags, source, incarnation, digest, a, b, c = HEADER.unpack_from(frame)
    if magic != MAGIC or digest != job:
        raise Refused("magic or job")
    known = _KINDS.get(kind)
    if known is None:
        raise Refused("kind")
    return Header(known, flags, source, incarnation, a, b, c)


def body(frame: bytes) -> memoryview[int]:
    """What follows the header of a first part."""
    return memoryview(frame)[HEADER.size :]


def encode_contents(key: Key, arrays: list[Array]) -> bytes:
    """The body of a MESSAGE of arrays that passed `payload.sendable`."""
    contents = Contents(key.edge, key.step, key.microbatch, types_of(arrays))
    encoded = _ENCODER.encode(contents)
    # 49 bytes an array at most: dimensions whose product is bounded need 44 for 32.
    assert len(encoded) <= MAX_BODY
    return encoded


def read_contents(
    frame: bytes | memoryview[int], nbytes: int, maximum: int
) -> Contents:
    """The body of a MESSAGE frame, held against its payload size and the maximum.

    Nothing is allocated before this has passed: sizes are exact integers here, so no
    product of dimensions can overflow. `Refused` when anything is off.
    """
    contents = decode(_CONTENTS, memoryview(frame)[HEADER.size :])
    if nbytes > maximum:
        raise Refused("over the maximum")
    if sum(sizes(contents.arrays)) != nbytes:
        raise Refused("sizes do not add up")
    return contents
