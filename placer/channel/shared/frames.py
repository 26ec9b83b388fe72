"""The frames on the socket between two nodes, and every check of what comes in.

The socket is a SOCK_SEQPACKET one: it keeps frames apart and in order and loses none,
and both ends have shown who they are before the first of these. A frame begins with a
header of 32 bytes, little-endian, no padding:

    bytes  field
    4      magic, b"PLS1"
    1      kind
    1      flags
    2      0
    8+8+8  a, b, c: unsigned, by kind

    kind         a              b              c            the rest
    1 HELLO      0              0              0            msgpack `Hello`
    2 MESSAGE    its number     places         type bytes   address, types, places, payload
    3 LONG       0              0              0            part of types and places
    4 BLOCK      its number     block of ring  0            -
    5 FREE       blocks, bits   credit         0            -
    6 REGION     its number     bytes          0            -
    7 DESCRIPTOR 0              0              0            -, the file beside it
    8 BEAT       credit wanted  credit         0            -
    9 GOODBYE    0              0              0            -
    10 ABORT     0              0              0            msgpack `Cause`

- HELLO comes first from both, and a BEAT next: see `rendezvous`.
- MESSAGE: messages from one node to another are numbered from 1. The rest is the
  address (edge, step, microbatch as signed 64-bit integers), the types in msgpack, and
  a place of 16 bytes (array, region, offset) for each array that lies in shared memory.
  The other arrays are the payload: up to `INLINE` bytes of it follow, all of it and
  each array at a multiple of 64 bytes; more of it comes in one BLOCK for each block of
  the message's layout, in order. Types and places that do not fit into a frame come
  before it, in LONG frames.
- FREE gives blocks of the ring back; credit is the bytes (cost) that the program has
  received, all told, and stands in BEAT too, the sign of life. A BEAT may ask: for the
  credit wanted, to be told each rise until it is reached, because the sender waits for
  room; with flag 1, to clear the ring, because it wants to end.
- REGION announces memory: the next frame is its DESCRIPTOR, with the file. Region 0 is
  the sender's ring.
- GOODBYE is the last frame of a node that ended in good order. The socket's end
  without one is the death of the peer.

A frame that fails a check is `Refused`, and ends the run: nothing is sent twice here, so
what follows it cannot be put together. Nothing that a check was made of lies in memory
that the peer can still write to. Nothing is ever executed: no pickle.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

from placer.channel.wire_bodies import Refused

MAGIC: Final = b"PLS1"
HEADER: Final = struct.Struct("<4sBBHQQQ")
INLINE: Final = 64 << 10
MAX_FRAME: Final = 128 << 10
"""A unix socket takes at least 200 KiB at once, whatever the system's limits."""

CLEAR: Final = 1


class Kind(IntEnum):
    """What a frame is; the numbers are on the socket."""

    HELLO = 1
    MESSAGE = 2
    LONG = 3
    BLOCK = 4
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
    """A frame of any kind."""
    return HEADER.pack(MAGIC, kind, flags, 0, a, b, c) + body


def read_header(data: memoryview[int]) -> tuple[Kind, int, int, int, int]:
    """Kind, flags, a, b and c of a frame; `Refused` when it is none of ours."""
    if not HEADER.size <= len(data) <= MAX_FRAME:
        raise Refused("length")
    magic, kind, flags, zero, a, b, c = HEADER.unpack_from(data)
    if magic != MAGIC or zero:
        raise Refused("magic")
    known = _KINDS.get(kind)
    if known is None:
        raise Refused("kind")
    return known, flags, a, b, c
