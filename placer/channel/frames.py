"""The frames on the connection between two nodes, and the checks of received frames.

A connection is a stream of bytes (a unix socket or TCP). It keeps their order and loses none
until it breaks. A frame is one of the structs below in msgpack; a `Message` frame may also have a
payload. Numbers are little-endian:

    bytes  field
    4      magic, b"PLC1"
    4      bytes of the struct
    4      bytes of the payload, a multiple of 64
    ...    the struct, and zeros up to a multiple of 64
    ...    the payload

So every frame, and the payload inside it, starts 64-byte aligned in the buffer of the receiver.

`Welcome`, then `Hello` or `Refusal`, are the first frames of a connection, and `Beat` is the next
one: see `connecting`. A node that ends without a failure sends `Goodbye`, and its peer answers
with `Farewell`.

A frame that fails a check raises `InvalidFrame`. Received bytes are decoded into exactly these
types. Sizes are checked before memory is allocated for them. Checked data is never in memory that
the peer can still write to. Received data is never executed: there is no pickle.
"""

from __future__ import annotations

import struct
from typing import Annotated, Final, NamedTuple, TypeVar, Union

import msgspec
from msgspec.structs import astuple

from placer.channel.cause import Cause
from placer.channel.payload import MAX_ARRAYS
from placer.channel.peers import MAX_CHAIN, Doing
from placer.channel.types import MAX_TEXT, Key, Text
from placer.system.memory.aligned import ALIGNMENT, round_up
from placer.system.printable import make_printable

MAGIC: Final = b"PLC1"
PREFIX: Final = struct.Struct("<4sII")
INLINE: Final = 64 << 10
"""The largest payload in bytes that is sent inside its `Message` frame."""
MAX_FRAME: Final = (2 << 20) + INLINE
"""The largest frame in bytes: 16,384 arrays of 32 dimensions need 1.3 MB."""
MAX_INCOMPLETE: Final = 2048
"""The largest number of messages that arrive at the same time."""
NONCE_BYTES: Final = 32

_PADDING: Final = bytes(ALIGNMENT)
_Number = Annotated[int, msgspec.Meta(ge=0)]
_Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]


class InvalidFrame(Exception):  # noqa: N818 - the outcome of a check
    """A frame that fails a check; the text names the check."""


class Refused(InvalidFrame):
    """A rejected `Hello`; the text is the reason, which is also sent to the other node.

    Attributes:
        is_second: whether the sender is a second process of a node that is alive.
    """

    def __init__(self, why: str, *, is_second: bool = False) -> None:
        super().__init__(why)
        self.is_second = is_second


class Frame(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True
):
    """A frame; its tag, the name of the class, is its kind."""


class Welcome(Frame, frozen=True):
    """The first frame of the listening node: a random nonce."""

    nonce: _Nonce


class Identity(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True
):
    """The identity of a `Hello`; sender and receiver must agree on the run.

    Attributes:
        job: the name of the run.
        build: the digest of the build.
        node: the sender.
        to: the receiver.
        nodes: the sorted names of all nodes.
        attempt: the attempt of the run that the sender is in.
    """

    job: Text
    build: Text
    node: Text
    to: Text
    nodes: list[Text]
    attempt: Annotated[int, msgspec.Meta(ge=1)] = 1


class Hello(Frame, frozen=True):
    """The greeting of a node.

    Attributes:
        identity: the identity of the sender.
        window: the bytes that the receiver may send before the sender has acknowledged
            them.
        incarnation: the number of the sender's process, see `incarnations`.
        known: the largest incarnation of the receiver that the sender knows; 0 if none.
        expected: the number of the next message that the sender expects.
        incomplete: the numbers of partly received messages, with the number of received
            pieces of each.
        refusal: why the sender refuses the receiver; empty if it accepts the connection.
        is_second: as in `Refused`.
        nonce: random bytes of the sender.
        mac: an authentication code of all other fields and of the receiver's nonce, with
            the key of the run; empty without a key.
    """

    identity: Identity
    window: _Number
    incarnation: _Number
    known: _Number = 0
    expected: _Number = 1
    incomplete: Annotated[
        list[tuple[_Number, _Number]], msgspec.Meta(max_length=MAX_INCOMPLETE)
    ] = []
    refusal: Text = ""
    is_second: bool = False
    nonce: bytes = b""
    mac: bytes = b""


class Refusal(Frame, frozen=True):
    """The reason for refusing a `Hello` that is not from this run."""

    why: Text


class Reference(NamedTuple):
    """The place of an array in shared memory of the sender."""

    array: _Number
    region: _Number
    offset: _Number


class Message(Frame, frozen=True):
    """The header of a message.

    Attributes:
        number: the number of the message, counted from 1 in each direction.
        source: the sending node.
        to: the receiving node.
        key: the key of the message.
        types: the types of its arrays, in msgpack (`contents`).
        references: the arrays that are in shared memory. All other arrays form the
            payload, each at a multiple of 64 bytes. A payload of up to `INLINE` bytes is in
            this frame; a larger one follows in pieces.
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
    """A piece of a message, as `pieces` divides it.

    The data is the `nbytes` bytes that follow this frame, or a chunk of the sender's `pool`
    in shared memory. Pieces of a message arrive in order; pieces of other messages and other
    frames may come in between.
    """

    message: _Number
    index: _Number
    nbytes: _Number = 0
    chunk: _Number | None = None


class Beat(Frame, frozen=True):
    """The heartbeat, which is also the acknowledgement.

    Attributes:
        credit: the total of bytes (cost) that the program has received.
        received: all messages up to this number have arrived completely.
        freed: a bit mask of chunks of the pool that the peer may fill again.
        wanted: the sender waits for room and asks the peer to report its credit at once
            until it reaches this total; 0 otherwise.
        message: the number of the message whose first `pieces` pieces the peer may send, or 0;
            see `link`.
        pieces: the number of pieces.
    """

    credit: _Number = 0
    received: _Number = 0
    freed: _Number = 0
    wanted: _Number = 0
    message: _Number = 0
    pieces: _Number = 0


class Clear(Frame, frozen=True):
    """Before closing: asks the peer to receive all messages now."""


class Demand(Frame, frozen=True):
    """Asks the peer to acknowledge stored messages, because the sender is in a circular wait."""


class Probe(Frame, frozen=True):
    """Detects circular waits (docs/about/channel.md). A node forwards each probe number once."""

    initiator: Text
    number: _Number


class Memory(Frame, frozen=True):
    """Announces shared memory of the sender. The frame carries its file descriptor.

    Region 0 is the pool.
    """

    region: _Number
    nbytes: _Number


class Status(Frame, frozen=True):
    """The activity of the sender, see `peers`."""

    doing: Annotated[
        tuple[Doing, ...], msgspec.Meta(min_length=1, max_length=MAX_CHAIN)
    ]


def as_text(text: str) -> str:
    """Return a text cut to `MAX_TEXT` characters and made encodable. Names of files may
    contain characters that cannot be encoded."""
    return make_printable(text[:MAX_TEXT])


class Abort(Frame, frozen=True):
    """The run has failed: the fields of a `Cause`."""

    node: Text
    where: Text
    what: Text
    is_interruption: bool = False
    is_error: bool = False
    is_final: bool = False
    is_outage: bool = False

    @classmethod
    def of(cls, cause: Cause) -> Abort:
        """Return the frame for a cause, with texts that a frame can hold."""
        node, where, what, *facts = astuple(cause)
        return cls(as_text(node), as_text(where), as_text(what), *facts)

    @property
    def cause(self) -> Cause:
        """The cause that the sender reports."""
        return Cause(*astuple(self))


class Goodbye(Frame, frozen=True):
    """The sender has ended its run without a failure."""


class Farewell(Frame, frozen=True):
    """Answers a `Goodbye`: the sender has seen it, and sends nothing more."""


Decoded = TypeVar("Decoded")
to_msgpack: Final = msgspec.msgpack.Encoder().encode
_FRAME: Final[msgspec.msgpack.Decoder[Frame]] = msgspec.msgpack.Decoder(
    Union[tuple(Frame.__subclasses__())]  # noqa: UP007
)


def from_msgpack(
    decoder: msgspec.msgpack.Decoder[Decoded], data: bytes | memoryview[int]
) -> Decoded:
    """Decode msgpack bytes. Raises InvalidFrame if the decoder rejects them."""
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
    """Return the size in bytes of the frame at the start of `data`.

    If the prefix is incomplete, returns the number of bytes to receive first.

    Raises InvalidFrame for malformed data, or a frame of more than `maximum` bytes.
    """
    if len(data) < PREFIX.size:
        return ALIGNMENT
    magic, head, payload = PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise InvalidFrame("wrong magic bytes")
    size: int = round_up(PREFIX.size + head) + payload
    if payload % ALIGNMENT or size > maximum:
        raise InvalidFrame("wrong length of the frame")
    return size


def decode(data: memoryview[int]) -> tuple[Frame, memoryview[int]]:
    """Decode a frame, given all its bytes; return it and its payload. Raises
    InvalidFrame if a check fails."""
    _, head, payload = PREFIX.unpack_from(data)
    frame = from_msgpack(_FRAME, data[PREFIX.size : PREFIX.size + head])
    if payload and not isinstance(frame, Message):
        raise InvalidFrame("wrong length of the frame")
    return frame, data[len(data) - payload :]
