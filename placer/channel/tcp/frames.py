"""The frames on a connection between two nodes, and the checks of those that arrive.

A connection is a stream of bytes, which keeps their order and loses none until it
breaks. A frame is a header of 64 bytes, little-endian, and a body, whose length is a
multiple of 64: so every frame, and the payload inside it, starts 64-byte aligned in the
buffer of the receiver.

    bytes  field
    4      magic, b"PLT1"
    1      kind
    1      flags
    2      0
    4      bytes of the body
    4      0
    6 x 8  a to f, by kind; unsigned, but signed d to f of a MESSAGE

    kind       a        b        c               d     e            f        the body
    1 HELLO    length   0        0               0     0            0        msgpack `Greeting`
    2 MESSAGE  number   0        bytes of types  edge  step         microb.  types, payload
    3 PIECE    number   index    0               0     0            0        a piece
    4 BEAT     credit   wanted   last received   0     number       pieces   -
    5 GOODBYE  0        0        0               0     0            0        -
    6 ABORT    length   0        0               0     0            0        msgpack `Cause`

- HELLO is the first frame of both nodes, and BEAT the next one: see `joining`.
- MESSAGE is the header of a message: its number, counted from 1 in each direction, its
  key, and the types of its arrays in msgpack. A payload of up to `INLINE` bytes follows
  in the same frame; it and each array in it start at a multiple of 64 bytes. A larger
  one follows in PIECE frames.
- PIECE is a piece of a message, as `pieces.layout` divides it. Pieces of a message come
  in their order; those of several messages, and other frames, may come between them.
- BEAT is the heartbeat and the acknowledgement. Its credit is the total of bytes (cost)
  that the program has received; `last received` is the number up to which all messages
  have arrived completely. A nonzero credit wanted asks the peer to report each rise of
  the credit until it reaches that, because the sender waits for room. A nonzero number
  allows the sender to send so many pieces of that message: see `link`. Flag 1 asks the
  peer to accept everything now, because the sender wants to close.
- GOODBYE is the last frame of a node that ended in good order.

A frame that fails a check raises `InvalidFrame`. Sizes are checked before anything is
allocated for them. Nothing is ever executed: no pickle.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, Final, NamedTuple

import msgspec

from placer.channel.frame_bodies import (
    ArrayTypes,
    Hello,
    InvalidFrame,
    decode,
    encode,
    encode_types,
    read_types,
)
from placer.channel.payload import CHUNK
from placer.channel.types import Array, Key
from placer.memory.aligned import ALIGNMENT, round_up

MAGIC: Final = b"PLT1"
HEADER: Final = struct.Struct("<4sBBHII6Q")
MESSAGE_HEADER: Final = struct.Struct("<4sBBHII3Q3q")
HEADER_BYTES: Final = HEADER.size
INLINE: Final = 64 << 10
"""Bytes of a payload that is sent inside its MESSAGE frame at most."""
MAX_BODY: Final = (2 << 20) + INLINE
"""Bytes of the body of a frame at most: 16,384 arrays of 32 dimensions need 1 MB."""
CLEAR: Final = 1
"""The flag of a BEAT that asks the peer to accept everything now."""

MAX_INCOMPLETE: Final = 2048
"""Messages that arrive at the same time at most."""

_Number = Annotated[int, msgspec.Meta(ge=0)]
_PADDING: Final = bytes(ALIGNMENT)


class Kind(IntEnum):
    """The kind of a frame; the numbers are on the wire."""

    HELLO = 1
    MESSAGE = 2
    PIECE = 3
    BEAT = 4
    GOODBYE = 5
    ABORT = 6


_KINDS: Final = {int(kind): kind for kind in Kind}


class Header(NamedTuple):
    """The decoded header of a frame; `length` are the bytes of its body."""

    kind: Kind
    flags: int
    length: int
    a: int
    b: int
    c: int
    d: int
    e: int
    f: int


def frame(kind: Kind, *fields: int, flags: int = 0, length: int = 0) -> bytes:
    """Return the header of a frame with the fields a, b and so on."""
    rest = (0,) * (6 - len(fields))
    return HEADER.pack(MAGIC, kind, flags, 0, length, 0, *fields, *rest)


def text_frame(kind: Kind, body: bytes) -> bytes:
    """Return a frame with a body of any length, which its field a has."""
    padded = round_up(len(body))
    header = frame(kind, len(body), length=padded)
    return b"".join((header, body, _PADDING[: padded - len(body)]))


def read_header(data: memoryview[int], maximum: int = MAX_BODY) -> Header:
    """Decode the header that `data` starts with; raises InvalidFrame for any other."""
    magic, kind, flags, zero, length, zeros, *fields = HEADER.unpack_from(data)
    if magic != MAGIC or zero or zeros:
        raise InvalidFrame("magic")
    known = _KINDS.get(kind)
    if known is None:
        raise InvalidFrame("kind")
    if length % ALIGNMENT or length > maximum:
        raise InvalidFrame("length")
    return Header(known, flags, length, *fields)


def read_text(header: Header, body: memoryview[int]) -> memoryview[int]:
    """Return the body of a frame of `text_frame`, without its padding."""
    if not 0 <= len(body) - header.a < ALIGNMENT:
        raise InvalidFrame("length")
    return body[: header.a]


class Greeting(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True
):
    """The body of a HELLO.

    Attributes:
        hello: who the sender is.
        incarnation: a random number of the sender's process: another one is a restart.
        expected: the number of the next message that the sender expects.
        incomplete: the numbers of the messages that have not arrived completely, with
            the number of their pieces that have.
    """

    hello: Hello
    incarnation: Annotated[int, msgspec.Meta(ge=0)]
    expected: _Number = 1
    incomplete: Annotated[
        list[tuple[_Number, _Number]], msgspec.Meta(max_length=MAX_INCOMPLETE)
    ] = []


_GREETING: Final = msgspec.msgpack.Decoder(Greeting)


def greeting_frame(greeting: Greeting) -> bytes:
    """Return a HELLO frame."""
    return text_frame(Kind.HELLO, encode(greeting))


def read_greeting(header: Header, body: memoryview[int]) -> Greeting:
    """Decode the body of a HELLO; raises InvalidFrame when it is malformed."""
    return decode(_GREETING, read_text(header, body))


class Contents(NamedTuple):
    """What the header of a message says: its key, and the types of its arrays, also as
    they are on the wire."""

    key: Key
    encoded: bytes
    arrays: ArrayTypes


def describe_arrays(key: Key, arrays: Sequence[Array]) -> Contents:
    """Return the contents of a message of arrays, which are checked."""
    encoded = encode_types(arrays)
    return Contents(key, encoded, read_types(encoded))


def message_frame(number: int, contents: Contents, arrays: Sequence[Array]) -> bytes:
    """Return the MESSAGE frame of a message, with a payload of up to `INLINE` bytes."""
    types, span = contents.encoded, contents.arrays.span
    inline = span if span <= INLINE else 0
    head = round_up(len(types))
    header = MESSAGE_HEADER.pack(
        MAGIC,
        Kind.MESSAGE,
        0,
        0,
        head + inline,
        0,
        number,
        0,
        len(types),
        *contents.key,
    )
    parts = [header, types, _PADDING[: head - len(types)]]
    if inline:
        for array in arrays:
            parts += array.tobytes(), _PADDING[: -array.nbytes % ALIGNMENT]
    return b"".join(parts)


def decode_message(
    header: Header, frame: memoryview[int], maximum: int
) -> tuple[Contents, memoryview[int]]:
    """Decode a MESSAGE frame; return its contents and its inline payload.

    `maximum` bounds the bytes of the arrays. Raises InvalidFrame when a check fails.
    """
    key = Key(*MESSAGE_HEADER.unpack_from(frame)[9:])
    body = frame[HEADER_BYTES:]
    head = round_up(header.c)
    if head > len(body):
        raise InvalidFrame("length")
    # A copy, so that the receive buffer can be reused.
    encoded = bytes(body[: header.c])
    arrays = read_types(encoded)
    if arrays.total > maximum:
        raise InvalidFrame(
            f"a message of {arrays.total} bytes is over the maximum of {maximum}"
        )
    inline = arrays.span if arrays.span <= INLINE else 0
    if len(body) != head + inline:
        raise InvalidFrame("sizes do not add up")
    return Contents(key, encoded, arrays), body[head:]


assert HEADER_BYTES == MESSAGE_HEADER.size == ALIGNMENT
assert CHUNK % ALIGNMENT == 0
