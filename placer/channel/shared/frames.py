"""The frames on the socket between two nodes, and the checks of their headers.

The socket is of type SOCK_SEQPACKET: it keeps frames apart and in order and loses none.
Both ends have identified themselves before the first of these frames. A frame starts
with a frame header of 32 bytes, little-endian, without padding:

    bytes  field
    4      magic, b"PLS1"
    1      kind
    1      flags
    2      0
    8+8+8  a, b, c: unsigned, by kind

    kind         a              b              c            the rest
    1 HELLO      0              0              0            msgpack `Hello`
    2 MESSAGE    number         references     type bytes   key, types, refs, payload
    3 LONG       0              0              0            part of types and references
    4 CHUNK      number         ring chunk     0            -
    5 FREE       chunks, bits   credit         0            -
    6 REGION     region number  bytes          0            -
    7 DESCRIPTOR 0              0              0            -, with the file
    8 BEAT       credit wanted  credit         0            -
    9 GOODBYE    0              0              0            -
    10 ABORT     0              0              0            msgpack `CauseBody`

- HELLO is the first frame of both nodes, and BEAT the next one: see `rendezvous`.
- MESSAGE is the header of a message. Messages from one node to another are numbered
  from 1. The rest is the key (edge, step, microbatch as signed 64-bit integers), the
  types in msgpack, and a reference of 16 bytes (array, region, offset) for each array
  that is in memory of `Channel.share`. The other arrays are the payload. If it has up
  to `INLINE` bytes, it follows in the same frame; the payload, and each array in it,
  starts at a multiple of 64 bytes. A larger one follows in one CHUNK frame for each
  chunk of the message's layout, in order. Types and references that do not fit into the
  frame are sent before it, in LONG frames.
- CHUNK says which chunk of the ring holds the next chunk of message `number`.
- FREE returns chunks of the ring. Its credit is the total of bytes (cost) that the
  program has received; so is that of BEAT.
- BEAT is the heartbeat, and may carry two requests. A nonzero credit wanted asks the
  peer to report each rise of the credit until it reaches that, because the sender waits
  for room. Flag 1 asks the peer to copy everything out of the ring, because the sender
  wants to close.
- REGION announces memory: the next frame is its DESCRIPTOR, with the file descriptor.
  Region 0 is the sender's ring.
- GOODBYE is the last frame of a node that ended in good order. If the socket ends
  without it, the peer has died.

A frame that fails a check raises `InvalidFrame` and ends the run: no frame is sent
twice, so the messages after it could not be assembled. Nothing that has been checked is
in memory that the peer can still write to. Nothing is ever executed: no pickle.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

from placer.channel.wire_bodies import InvalidFrame

MAGIC: Final = b"PLS1"
HEADER: Final = struct.Struct("<4sBBHQQQ")
INLINE: Final = 64 << 10
"""Bytes of a payload that is sent inside its MESSAGE frame at most."""
MAX_FRAME: Final = 128 << 10
"""Bytes of a frame at most: a unix socket accepts 200 KiB under any system limits."""

CLEAR: Final = 1
"""The flag of a BEAT that asks the peer to copy everything out of the ring."""


class Kind(IntEnum):
    """The kind of a frame; the numbers are on the wire."""

    HELLO = 1
    MESSAGE = 2
    LONG = 3
    CHUNK = 4
    FREE = 5
    REGION = 6
    DESCRIPTOR = 7
    BEAT = 8
    GOODBYE = 9
    ABORT = 10


_KINDS: Final = {int(kind): kind for kind in Kind}


def frame(
    kind: Kind, a: int = 0, b: int = 0, c: int = 0, flags: int = 0, body: bytes = b""
) -> bytes:
    """Return a frame of any kind."""
    return HEADER.pack(MAGIC, kind, flags, 0, a, b, c) + body


def read_header(data: memoryview[int]) -> tuple[Kind, int, int, int, int]:
    """Return kind, flags, a, b and c of a frame; raises InvalidFrame for any other."""
    if not HEADER.size <= len(data) <= MAX_FRAME:
        raise InvalidFrame("length")
    magic, kind, flags, zero, a, b, c = HEADER.unpack_from(data)
    if magic != MAGIC or zero:
        raise InvalidFrame("magic")
    known = _KINDS.get(kind)
    if known is None:
        raise InvalidFrame("kind")
    return known, flags, a, b, c
