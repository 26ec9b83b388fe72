"""The frames on the connection between two nodes, and the checks of those that arrive.

A connection is a stream of bytes (a unix socket or TCP), which keeps their order and
loses none until it breaks. A frame is a header of 64 bytes, little-endian, and a body,
whose length is a multiple of 64: so every frame, and the payload inside it, starts
64-byte aligned in the buffer of the receiver.

    bytes  field
    4      magic, b"PLC1"
    1      kind
    1      flags
    2      0
    4      bytes of the body
    4      0
    6 x 8  a to f, by kind; unsigned, but signed d to f of a MESSAGE

    kind       a        b           c               d      e       f       the body
    1 HELLO    length   0           0               0      0       0       msgpack `Greeting`
    2 MESSAGE  number   references  bytes of types  edge   step    microb. see below
    3 PIECE    number   index       chunk + 1, or 0 0      0       0       a piece
    4 BEAT     credit   wanted      last received   freed  number  pieces  -
    5 GOODBYE  0        0           0               0      0       0       -
    6 ABORT    length   0           0               0      0       0       msgpack `Cause`
    7 REGION   region   bytes       0               0      0       0       -
    8 STATUS   length   0           0               0      0       0       msgpack `Status`
    9 WELCOME  length   0           0               0      0       0       a nonce
    10 REFUSED length   0           0               0      0       0       a text
    11 PROBE   length   number      hops            0      0       0       msgpack, a node

- WELCOME, HELLO, and REFUSED with the reason, are the first frames of a connection, and
  BEAT is the next one: see `joining`.
- MESSAGE is the header of a message: its number, counted from 1 in each direction, and
  its key. The body is the types of its arrays in msgpack; a reference of 16 bytes (array,
  region, offset) for each array that is in shared memory of the sender; and a payload of
  up to `INLINE` bytes, the other arrays. The payload and each array in it start at a
  multiple of 64 bytes. A larger payload follows in PIECE frames.
- PIECE is a piece of a message, as `pieces` divides it: the body, or a chunk of the
  sender's pool, which is in shared memory (`pool`). Pieces of a message come in their
  order; those of several messages, and other frames, may come between them.
- BEAT is the heartbeat and the acknowledgement. Its credit is the total of bytes (cost)
  that the program has received; `last received` is the number up to which all messages
  have arrived completely; the bits of `freed` are chunks of the pool that the peer may
  fill again. A nonzero credit wanted asks the peer to report each rise of the credit
  until it reaches that, because the sender waits for room. A nonzero number allows the
  peer to send so many pieces of that message: see `link`. Flag `CLEAR` asks the peer to
  accept everything now, because the sender wants to close; `STARVED`, to copy what it
  has not used out of the pool, because another message needs it; `DEMAND`, to acknowledge
  what it has stored, because its sender waits in a circle.
- PROBE looks for such circles: see `mailbox`.
- REGION announces shared memory of the sender; its file descriptor comes with the frame.
  Region 0 is the pool.
- STATUS says what the sender does, see `peers`.
- GOODBYE is the last frame of a node that ended in good order.

A frame that fails a check raises `InvalidFrame`. Sizes are checked before anything is
allocated for them, and nothing that was checked is in memory that the peer can still
write to. Nothing is ever executed: no pickle.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from placer.channel.frame_bodies import (
    ArrayTypes,
    Greeting,
    InvalidFrame,
    encode,
    encode_types,
    read_greeting,
    read_types,
)
from placer.channel.payload import MAX_ARRAYS
from placer.channel.pieces import PIECE
from placer.channel.types import Array, Key
from placer.memory.aligned import ALIGNMENT, aligned_offsets, round_up

MAGIC: Final = b"PLC1"
HEADER: Final = struct.Struct("<4sBBHII6Q")
MESSAGE_HEADER: Final = struct.Struct("<4sBBHII3Q3q")
REFERENCE: Final = struct.Struct("<IIQ")
HEADER_BYTES: Final = HEADER.size
INLINE: Final = 64 << 10
"""Bytes of a payload that is sent inside its MESSAGE frame at most."""
MAX_BODY: Final = (2 << 20) + INLINE
"""Bytes of the body of a frame at most: 16,384 arrays of 32 dimensions need 1.3 MB."""
CLEAR: Final = 1
"""The flag of a BEAT that asks the peer to accept everything now."""
STARVED: Final = 2
"""The flag of a BEAT that asks the peer to copy its messages out of the pool."""
DEMAND: Final = 4
"""The flag of a BEAT that asks the peer to acknowledge what it has stored."""

_PADDING: Final = bytes(ALIGNMENT)


class Kind(IntEnum):
    """The kind of a frame; the numbers are on the wire."""

    HELLO = 1
    MESSAGE = 2
    PIECE = 3
    BEAT = 4
    GOODBYE = 5
    ABORT = 6
    REGION = 7
    STATUS = 8
    WELCOME = 9
    REFUSED = 10
    PROBE = 11


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

    @property
    def is_inline(self) -> bool:
        """Whether the payload is in the MESSAGE frame."""
        return self.span <= INLINE


def frame(kind: Kind, *fields: int, flags: int = 0, length: int = 0) -> bytes:
    """Return the header of a frame with the fields a, b and so on."""
    rest = (0,) * (6 - len(fields))
    return HEADER.pack(MAGIC, kind, flags, 0, length, 0, *fields, *rest)


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


def text_frame(kind: Kind, body: bytes, *fields: int) -> bytes:
    """Return a frame with a body of any length, which its field a has; `fields` are those
    from b on."""
    padded = round_up(len(body))
    header = frame(kind, len(body), *fields, length=padded)
    return b"".join((header, body, _PADDING[: padded - len(body)]))


def read_text(header: Header, body: memoryview[int]) -> memoryview[int]:
    """Return the body of a frame of `text_frame`, without its padding."""
    if not 0 <= len(body) - header.a < ALIGNMENT:
        raise InvalidFrame("length")
    return body[: header.a]


def greeting_frame(greeting: Greeting) -> bytes:
    """Return a HELLO frame."""
    return text_frame(Kind.HELLO, encode(greeting))


def decode_greeting(header: Header, body: memoryview[int]) -> Greeting:
    """Decode the body of a HELLO; raises InvalidFrame when it is malformed."""
    return read_greeting(read_text(header, body))


def describe_arrays(
    key: Key, arrays: Sequence[Array], references: Mapping[int, tuple[int, int]]
) -> Contents:
    """Return the contents of a message of arrays, which are checked."""
    return _contents(key, encode_types(arrays), references)


def message_frame(number: int, contents: Contents, arrays: Sequence[Array]) -> bytes:
    """Return the MESSAGE frame of a message, with its payload if that is inline."""
    types, references = contents.encoded, contents.references
    head = types
    if references:
        head += b"".join(REFERENCE.pack(i, *place) for i, place in references.items())
    padding = -len(head) % ALIGNMENT
    inline = contents.span if contents.is_inline else 0
    length = len(head) + padding + inline
    header = MESSAGE_HEADER.pack(
        MAGIC,
        Kind.MESSAGE,
        0,
        0,
        length,
        0,
        number,
        len(references),
        len(types),
        *contents.key,
    )
    parts = [header, head, _PADDING[:padding]]
    if inline:
        for i, array in enumerate(arrays):
            if i not in references:
                parts += array.tobytes(), _PADDING[: -array.nbytes % ALIGNMENT]
    return b"".join(parts)


def decode_message(
    header: Header, frame: memoryview[int], maximum: int
) -> tuple[Contents, memoryview[int]]:
    """Decode a MESSAGE frame; return its contents and its inline payload.

    `maximum` bounds the bytes of arrays without a reference. Raises InvalidFrame when a
    check fails; all sizes are checked before anything is allocated for them.
    """
    key = Key(*MESSAGE_HEADER.unpack_from(frame)[9:])
    body = frame[HEADER_BYTES:]
    count = header.b
    if count > MAX_ARRAYS or header.c > len(body):
        raise InvalidFrame("length")
    end = header.c + count * REFERENCE.size
    head = round_up(end)
    if head > len(body):
        raise InvalidFrame("length")
    # A copy, so that the receive buffer can be reused.
    encoded = bytes(body[: header.c])
    references = {
        i: (region, at) for i, region, at in REFERENCE.iter_unpack(body[header.c : end])
    }
    if len(references) != count:
        raise InvalidFrame("references")  # an array has two
    contents = _contents(key, encoded, references)
    if contents.copied_nbytes > maximum:
        raise InvalidFrame(
            f"a message of {contents.copied_nbytes} bytes is over the maximum of "
            f"{maximum}"
        )
    inline = contents.span if contents.is_inline else 0
    if len(body) != head + inline:
        raise InvalidFrame("sizes do not add up")
    return contents, body[head:]


def _contents(
    key: Key, encoded: bytes, references: Mapping[int, tuple[int, int]]
) -> Contents:
    """Return the contents of a message; raises InvalidFrame for what none may have."""
    arrays = read_types(encoded)
    copied_nbytes, offsets, span = arrays.total, arrays.offsets, arrays.span
    if references:
        if max(references) >= len(arrays.types):
            raise InvalidFrame("references")
        copied_nbytes -= sum(arrays.sizes[i] for i in references)
        offsets, span = aligned_offsets(arrays.sizes, references)
    return Contents(key, encoded, arrays, references, copied_nbytes, offsets, span)


assert HEADER_BYTES == MESSAGE_HEADER.size == ALIGNMENT
assert PIECE % ALIGNMENT == 0
