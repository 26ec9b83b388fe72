"""The frames on the socket between two nodes, and the checks of those that arrive.

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
    4 CHUNK      number         chunk          0            -
    6 REGION     region number  bytes          0            -
    7 DESCRIPTOR 0              0              0            -, with the file
    8 BEAT       credit wanted  credit         chunks, bits -
    9 GOODBYE    0              0              0            -
    10 ABORT     0              0              0            msgpack `Cause`

- HELLO is the first frame of both nodes, and BEAT the next one: see `rendezvous`.
- MESSAGE is the header of a message. Messages from one node to another are numbered
  from 1. The rest is the key (edge, step, microbatch as signed 64-bit integers), the
  types in msgpack, and a reference of 16 bytes (array, region, offset) for each array
  that is in memory of `Channel.share`. The other arrays are the payload. If it has up
  to `INLINE` bytes, it follows in the same frame; the payload, and each array in it,
  starts at a multiple of 64 bytes. A larger one follows in one CHUNK frame for each
  chunk of the message's layout, in order. Types and references that do not fit into the
  frame are sent before it, in LONG frames.
- CHUNK says which chunk of the pool (`chunks`) holds the next chunk of message `number`.
- BEAT is the heartbeat and the acknowledgement. Its credit is the total of bytes (cost)
  that the program has received, and it returns chunks of the pool. It may carry two
  requests. A nonzero credit wanted asks the peer to report each rise of the credit
  until it reaches that, because the sender waits for room. Flag 1 asks the peer to copy
  everything out of the pool, because the sender wants to close.
- REGION announces memory: the next frame is its DESCRIPTOR, with the file descriptor.
  Region 0 is the sender's pool.
- GOODBYE is the last frame of a node that ended in good order. If the socket ends
  without it, the peer has died.

A frame that fails a check raises `InvalidFrame` and ends the run: no frame is sent
twice, so the messages after it could not be assembled. Nothing that has been checked is
in memory that the peer can still write to. Nothing is ever executed: no pickle.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from placer.channel import frame_bodies
from placer.channel.frame_bodies import ArrayTypes, InvalidFrame
from placer.channel.payload import MAX_ARRAYS
from placer.channel.types import Array, Key
from placer.memory.aligned import ALIGNMENT, aligned_offsets

MAGIC: Final = b"PLS1"
HEADER: Final = struct.Struct("<4sBBHQQQ")
MESSAGE_HEADER: Final = struct.Struct(HEADER.format + "qqq")
REFERENCE: Final = struct.Struct("<IIQ")
INLINE: Final = 64 << 10
"""Bytes of a payload that is sent inside its MESSAGE frame at most."""
MAX_FRAME: Final = 128 << 10
"""Bytes of a frame at most: a unix socket accepts 200 KiB under any system limits."""
MAX_LONG: Final = 2 << 20
"""Bytes of types and references in the LONG frames of a message at most."""
MAX_TYPES: Final = MAX_FRAME - MESSAGE_HEADER.size - ALIGNMENT - INLINE
"""Bytes of types and references that fit into a MESSAGE with any inline payload."""
CLEAR: Final = 1
"""The flag of a BEAT that asks the peer to copy everything out of the chunk pool."""

_PADDING: Final = tuple(bytes(n) for n in range(ALIGNMENT))


class Kind(IntEnum):
    """The kind of a frame; the numbers are on the wire."""

    HELLO = 1
    MESSAGE = 2
    LONG = 3
    CHUNK = 4
    REGION = 6
    DESCRIPTOR = 7
    BEAT = 8
    GOODBYE = 9
    ABORT = 10


_KINDS: Final = {int(kind): kind for kind in Kind}


class Contents(NamedTuple):
    """What the header of a message says.

    `encoded` are the types of the arrays as they are on the wire. `references` are
    (region, offset) by the index of the array. `copied_nbytes` are the bytes of the
    arrays without a reference; `offsets` and `span` are their offsets and length in an
    inline payload.
    """

    key: Key
    encoded: bytes
    arrays: ArrayTypes
    references: Mapping[int, tuple[int, int]]
    copied_nbytes: int
    offsets: tuple[int, ...]
    span: int


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


def describe_arrays(
    key: Key, arrays: list[Array], references: Mapping[int, tuple[int, int]]
) -> Contents:
    """Return the contents of a message of arrays, which are checked."""
    return _contents(key, frame_bodies.encode_types(arrays), references)


def encode_header(
    number: int, contents: Contents, arrays: Sequence[Array]
) -> list[bytes]:
    """Return the LONG frames that a header needs, if any, then its MESSAGE frame.

    The payload is in the MESSAGE frame if it has 1 to `INLINE` bytes.
    """
    references, types = contents.references, contents.encoded
    rest = types
    if references:
        rest += b"".join(REFERENCE.pack(i, *place) for i, place in references.items())
    long_frames = []
    if len(rest) > MAX_TYPES:
        long_frames = [
            frame(Kind.LONG, body=rest[at : at + MAX_TYPES])
            for at in range(0, len(rest), MAX_TYPES)
        ]
        rest = b""
    head = MESSAGE_HEADER.pack(
        MAGIC, Kind.MESSAGE, 0, 0, number, len(references), len(types), *contents.key
    )
    parts = [head, rest]
    if 0 < contents.span <= INLINE:
        parts.append(_PADDING[-(MESSAGE_HEADER.size + len(rest)) % ALIGNMENT])
        for i, array in enumerate(arrays):
            if i not in references:
                parts += array.tobytes(), _PADDING[-array.nbytes % ALIGNMENT]
    return [*long_frames, b"".join(parts)]


def decode_header(
    data: memoryview[int], long_data: bytes, maximum: int
) -> tuple[int, Contents, memoryview[int]]:
    """Decode a MESSAGE frame; return its number, its contents and its inline payload.

    `long_data` is what the LONG frames before it brought. `maximum` bounds the bytes of
    arrays without a reference. Raises InvalidFrame when a check fails; all sizes are
    checked before anything is allocated for them.
    """
    if len(data) < MESSAGE_HEADER.size:
        raise InvalidFrame("length")
    number, reference_count, types_length, *key = MESSAGE_HEADER.unpack_from(data)[4:]
    if reference_count > MAX_ARRAYS:
        raise InvalidFrame("length")
    expected = types_length + reference_count * REFERENCE.size
    end = MESSAGE_HEADER.size if long_data else MESSAGE_HEADER.size + expected
    # A copy, so that the receive buffer can be reused.
    rest = long_data or bytes(data[MESSAGE_HEADER.size : end])
    if len(rest) != expected:
        raise InvalidFrame("length")
    references = {
        i: (region, at) for i, region, at in REFERENCE.iter_unpack(rest[types_length:])
    }
    if len(references) != reference_count:
        raise InvalidFrame("references")  # an array has two
    contents = _contents(Key(*key), rest[:types_length], references)
    if contents.copied_nbytes > maximum:
        raise InvalidFrame(
            f"a message of {contents.copied_nbytes} bytes is over the maximum of "
            f"{maximum}"
        )
    if 0 < contents.span <= INLINE:
        end += -end % ALIGNMENT
        if len(data) != end + contents.span:
            raise InvalidFrame("sizes do not add up")
    elif len(data) != end:
        raise InvalidFrame("length")
    return number, contents, data[end:]


def _contents(
    key: Key, encoded: bytes, references: Mapping[int, tuple[int, int]]
) -> Contents:
    """Return the contents of a message; raises InvalidFrame for what none may have."""
    arrays = frame_bodies.read_types(encoded)
    copied_nbytes, offsets, span = arrays.total, arrays.offsets, arrays.span
    if references:
        if max(references) >= len(arrays.types):
            raise InvalidFrame("references")
        copied_nbytes -= sum(arrays.sizes[i] for i in references)
        offsets, span = aligned_offsets(arrays.sizes, references)
    return Contents(key, encoded, arrays, references, copied_nbytes, offsets, span)
