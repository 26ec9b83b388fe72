"""The frames on the connection between two nodes, and the checks of those that arrive.

A connection is a stream of bytes (a unix socket or TCP), which keeps their order and
loses none until it breaks. A frame is one of the structs below in msgpack; that of a
`Message` may have a payload. Numbers are little-endian:

    bytes  field
    4      magic, b"PLC1"
    4      bytes of the struct
    4      bytes of the payload, a multiple of 64
    ...    the struct, and zeros up to a multiple of 64
    ...    the payload

So every frame, and the payload inside it, starts 64-byte aligned in the buffer of the
receiver.

`Welcome`, `Hello`, and `Refusal` with the reason, are the first frames of a connection,
and `Beat` is the next one: see `connecting`. A node that ended in
good order says `Goodbye`, and its peer answers with `Farewell`.

A frame that fails a check raises `InvalidFrame`. Bytes that arrive are decoded into
exactly these types and no others. Sizes are checked before anything is allocated for
them, and nothing that was checked is in memory that the peer can still write to. Nothing
is ever executed: no pickle.
"""

from __future__ import annotations

import struct
from typing import Annotated, Final, NamedTuple, TypeVar, Union

import msgspec

from placer.channel.cause import Cause
from placer.channel.payload import MAX_ARRAYS
from placer.channel.peers import MAX_CHAIN, Doing
from placer.channel.types import MAX_TEXT, Key, Text
from placer.system.memory.aligned import ALIGNMENT, round_up
from placer.system.printable import make_printable

MAGIC: Final = b"PLC1"
PREFIX: Final = struct.Struct("<4sII")
INLINE: Final = 64 << 10
"""Bytes of a payload that is sent inside its `Message` frame at most."""
MAX_FRAME: Final = (2 << 20) + INLINE
"""Bytes of a frame at most: 16,384 arrays of 32 dimensions need 1.3 MB."""
MAX_INCOMPLETE: Final = 2048
"""Messages that arrive at the same time at most."""
NONCE_BYTES: Final = 32

_PADDING: Final = bytes(ALIGNMENT)
_Number = Annotated[int, msgspec.Meta(ge=0)]
_Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]


class InvalidFrame(Exception):  # noqa: N818 - the outcome of a check
    """A frame that does not pass a check; the text says which check."""


class Refused(InvalidFrame):
    """A `Hello` of a node that is not of this run; the text says why, also to that node.

    `is_second` says that the sender is a second process of a node whose first one is heard.
    """

    def __init__(self, why: str, *, is_second: bool = False) -> None:
        super().__init__(why)
        self.is_second = is_second


class Frame(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True
):
    """A frame; the name of its class, which is its tag, says of which kind."""


class Welcome(Frame, frozen=True):
    """The first frame of the node that listens: random bytes."""

    nonce: _Nonce


class Identity(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True
):
    """The run and the build, the sender, the receiver, and the sorted names of all nodes,
    on which both must agree."""

    job: Text
    build: Text
    node: Text
    to: Text
    nodes: list[Text]


class Hello(Frame, frozen=True):
    """The greeting of a node.

    Attributes:
        identity: who the sender is.
        window: the bytes that the receiver of this may send before the sender of this
            has acknowledged them.
        incarnation: a random number of the sender's process: another one is a restart.
        expected: the number of the next message that the sender expects.
        incomplete: the numbers of the messages that have not arrived completely, with
            the number of their pieces that have.
        nonce: random bytes of the sender of this.
        mac: an authentication code of the others and of the nonce of the receiver, with
            the key of the run; empty without one.
    """

    identity: Identity
    window: _Number
    incarnation: _Number
    expected: _Number = 1
    incomplete: Annotated[
        list[tuple[_Number, _Number]], msgspec.Meta(max_length=MAX_INCOMPLETE)
    ] = []
    nonce: bytes = b""
    mac: bytes = b""


class Refusal(Frame, frozen=True):
    """Why a node refuses a `Hello`; `is_second` as in `Refused`."""

    why: Text
    is_second: bool = False


class Reference(NamedTuple):
    """The place of an array in shared memory of the sender."""

    array: _Number
    region: _Number
    offset: _Number


class Message(Frame, frozen=True):
    """The header of a message: its number, counted from 1 in each direction, the nodes of
    the two processes that it goes from and to, and its key.

    `types` are the types of its arrays, in msgpack (`contents`), `references` those
    arrays that are in shared memory. The others are the payload; it is in this frame if
    it has up to `INLINE` bytes, and each array in it starts at a multiple of 64 bytes. A
    larger one follows in pieces.
    """

    number: _Number
    source: Text
    to: Text
    key: Key
    types: bytes
    references: Annotated[
        tuple[Reference, ...], msgspec.Meta(max_length=MAX_ARRAYS)
    ] = ()


class Piece(Frame, frozen=True):
    """A piece of a message, as `pieces` divides it: the `nbytes` bytes that follow this
    frame, or a chunk of the sender's pool, which is in shared memory (`pool`).

    Pieces of a message come in their order; those of several messages, and other frames,
    may come between them.
    """

    message: _Number
    index: _Number
    nbytes: _Number = 0
    chunk: _Number | None = None


class Beat(Frame, frozen=True):
    """The heartbeat and the acknowledgement.

    Attributes:
        credit: the total of bytes (cost) that the program has received.
        received: the number up to which all messages have arrived completely.
        freed: the bits of chunks of the pool that the peer may fill again.
        wanted: asks the peer to report each rise of its credit until it reaches that,
            because the sender waits for room; or 0.
        message: a message of which the peer may send `pieces` pieces, or 0; see `link`.
        pieces: how many.
    """

    credit: _Number = 0
    received: _Number = 0
    freed: _Number = 0
    wanted: _Number = 0
    message: _Number = 0
    pieces: _Number = 0


class Clear(Frame, frozen=True):
    """Asks the peer to accept everything now, because the sender wants to close."""


class Demand(Frame, frozen=True):
    """Asks the peer to acknowledge what it has stored, because its sender waits in a
    circle."""


class Probe(Frame, frozen=True):
    """Looks for such circles: see docs/channel.md. A node passes one of a number once."""

    initiator: Text
    number: _Number


class Memory(Frame, frozen=True):
    """Shared memory of the sender; its file descriptor comes with the frame. Region 0 is
    the pool."""

    region: _Number
    nbytes: _Number


class Status(Frame, frozen=True):
    """What the sender does, see `peers`."""

    doing: Annotated[
        tuple[Doing, ...], msgspec.Meta(min_length=1, max_length=MAX_CHAIN)
    ]


def as_text(text: str) -> str:
    """Return a text of up to `MAX_TEXT` characters that can be encoded: the name of a file
    may not be."""
    return make_printable(text[:MAX_TEXT])


class Abort(Frame, frozen=True):
    """The run has failed: the fields of a `Cause`."""

    node: Text
    where: Text
    what: Text
    is_interruption: bool = False

    @classmethod
    def of(cls, cause: Cause) -> Abort:
        """Return the frame for a cause, with texts that a frame can have."""
        node, where, what = map(as_text, (cause.node, cause.where, cause.what))
        return cls(node, where, what, cause.is_interruption)


class Goodbye(Frame, frozen=True):
    """The sender has ended its run in good order."""


class Farewell(Frame, frozen=True):
    """Answers a `Goodbye`: the sender knows, and sends nothing more."""


Decoded = TypeVar("Decoded")
to_msgpack: Final = msgspec.msgpack.Encoder().encode
_FRAME: Final[msgspec.msgpack.Decoder[Frame]] = msgspec.msgpack.Decoder(
    Union[tuple(Frame.__subclasses__())]  # noqa: UP007
)


def from_msgpack(
    decoder: msgspec.msgpack.Decoder[Decoded], data: bytes | memoryview[int]
) -> Decoded:
    """Decode msgpack bytes; raises InvalidFrame when the decoder rejects them."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidFrame(str(error)) from None


def encode(frame: Frame, *payload: bytes) -> bytes:
    """Return the bytes of a frame, with the parts of its payload."""
    head = to_msgpack(frame)
    prefix = PREFIX.pack(MAGIC, len(head), sum(map(len, payload)))
    padding = _PADDING[: -(PREFIX.size + len(head)) % ALIGNMENT]
    return b"".join((prefix, head, padding, *payload))


def size_of(data: memoryview[int], maximum: int = MAX_FRAME) -> int:
    """Return the bytes of the frame that `data` starts with, as far as that is known.

    Raises InvalidFrame for what is no frame, or one of more than `maximum` bytes.
    """
    if len(data) < PREFIX.size:
        return ALIGNMENT
    magic, head, payload = PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise InvalidFrame("magic")
    size: int = round_up(PREFIX.size + head) + payload
    if payload % ALIGNMENT or size > maximum:
        raise InvalidFrame("length")
    return size


def decode(data: memoryview[int]) -> tuple[Frame, memoryview[int]]:
    """Decode a frame, of which `size_of` bytes are given; return it and its payload.

    Raises InvalidFrame when a check fails.
    """
    _, head, payload = PREFIX.unpack_from(data)
    frame = from_msgpack(_FRAME, data[PREFIX.size : PREFIX.size + head])
    if payload and not isinstance(frame, Message):
        raise InvalidFrame("length")
    return frame, data[len(data) - payload :]
