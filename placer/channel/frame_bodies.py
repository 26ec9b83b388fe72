"""The msgpack bodies of frames: who a node is, the cause of a failure, and the types of
a message.

Bytes that arrive are decoded into exactly these types and no others, and sizes are
checked before anything is allocated. Nothing is ever executed: no pickle.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec

from placer.channel.cause import Cause
from placer.channel.payload import (
    CODES,
    DTYPES,
    MAX_ARRAYS,
    MAX_EXTENT,
    MAX_RANK,
)
from placer.channel.peers import MAX_CHAIN, Doing, Status
from placer.channel.types import Array, ArrayType
from placer.memory.aligned import aligned_offsets

CACHED_TYPES: Final = 8 << 10
"""Types of at most so many bytes are cached: every step has the same messages."""
MAX_TEXT: Final = 8192
"""Characters of a text that a node accepts from another."""

MAX_INCOMPLETE: Final = 2048
"""Messages that arrive at the same time at most."""

_Number = Annotated[int, msgspec.Meta(ge=0)]
_Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
_Code = Annotated[int, msgspec.Meta(ge=0, lt=len(DTYPES))]
_Size = Annotated[int, msgspec.Meta(ge=0, le=MAX_EXTENT)]
_Shape = Annotated[tuple[_Size, ...], msgspec.Meta(max_length=MAX_RANK)]
# The code of the dtype (its index in `payload.DTYPES`) and the shape of each array.
_Types = Annotated[list[tuple[_Code, _Shape]], msgspec.Meta(max_length=MAX_ARRAYS)]


class InvalidFrame(Exception):  # noqa: N818 - the outcome of a check
    """A frame that does not pass a check; the text says which check."""


class Refused(InvalidFrame):
    """A HELLO of a node that is not of this run; the text says why, also to that node."""


class Hello(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The run and the build, the sender, the receiver, and the sorted names of all nodes,
    on which both must agree."""

    job: _Text
    build: _Text
    node: _Text
    to: _Text
    nodes: list[_Text]


class Greeting(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True
):
    """The body of a HELLO.

    Attributes:
        hello: who the sender is.
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

    hello: Hello
    window: _Number
    incarnation: _Number
    expected: _Number = 1
    incomplete: Annotated[
        list[tuple[_Number, _Number]], msgspec.Meta(max_length=MAX_INCOMPLETE)
    ] = []
    nonce: bytes = b""
    mac: bytes = b""


class ArrayTypes(NamedTuple):
    """The types of a message's arrays, the size of each, and `total`, all in bytes.

    `offsets` and `span` are the offsets and the length of a payload of all the arrays
    in which each is aligned.
    """

    types: tuple[ArrayType, ...]
    sizes: tuple[int, ...]
    total: int
    offsets: tuple[int, ...]
    span: int


Body = TypeVar("Body")
encode = msgspec.msgpack.Encoder().encode
_GREETING: Final = msgspec.msgpack.Decoder(Greeting)
_CAUSE: Final = msgspec.msgpack.Decoder(tuple[_Text, _Text, _Text])
_STATUS: Final = msgspec.msgpack.Decoder(
    Annotated[
        tuple[tuple[_Text, _Text, float], ...], msgspec.Meta(max_length=MAX_CHAIN)
    ]
)
_NAME: Final = msgspec.msgpack.Decoder(_Text)
_TYPES: Final = msgspec.msgpack.Decoder(_Types)


def decode(
    decoder: msgspec.msgpack.Decoder[Body], body: bytes | memoryview[int]
) -> Body:
    """Decode msgpack bytes; raises InvalidFrame when the decoder rejects them."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidFrame(str(error)) from None


def read_greeting(body: bytes | memoryview[int]) -> Greeting:
    """Decode the body of a HELLO; raises InvalidFrame when it is malformed."""
    return decode(_GREETING, body)


def encode_cause(cause: Cause) -> bytes:
    """Return the body of an ABORT; texts are truncated to `MAX_TEXT` characters."""
    texts = (cause.node, cause.where, cause.what)
    return encode([text[:MAX_TEXT] for text in texts])


def read_cause(body: bytes | memoryview[int]) -> Cause:
    """Decode the body of an ABORT; raises InvalidFrame when it is malformed."""
    return Cause(*decode(_CAUSE, body))


def read_name(body: bytes | memoryview[int]) -> str:
    """Decode the body of a PROBE; raises InvalidFrame when it is malformed."""
    return decode(_NAME, body)


def encode_status(status: Status) -> bytes:
    """Return the body of a STATUS."""
    return encode([(node, what[:MAX_TEXT], since) for node, what, since in status])


def read_status(body: bytes | memoryview[int]) -> Status:
    """Decode the body of a STATUS; raises InvalidFrame when it is malformed."""
    return tuple(Doing(*each) for each in decode(_STATUS, body))


def encode_types(arrays: Sequence[Array]) -> bytes:
    """Return the types of arrays that passed `payload.check_arrays`."""
    return encode([(CODES[array.dtype], array.shape) for array in arrays])


def read_types(encoded: bytes) -> ArrayTypes:
    """Decode the types of a message.

    Raises InvalidFrame when they are malformed, and for shapes that no array may have.
    Sizes are exact integers here, so no product of dimensions can overflow.
    """
    read = _read_types_once if len(encoded) <= CACHED_TYPES else _read_types
    return read(encoded)


def _read_types(encoded: bytes) -> ArrayTypes:
    types, sizes = [], []
    for code, shape in decode(_TYPES, encoded):
        dtype = DTYPES[code]
        size = prod(shape)
        # numpy refuses an empty array whose other dimensions overflow: 0 x 2**63.
        if size == 0 and prod(n for n in shape if n) > MAX_EXTENT:
            raise InvalidFrame("dimensions")
        types.append((dtype, shape))
        sizes.append(size * dtype.itemsize)
    offsets, span = aligned_offsets(sizes)
    return ArrayTypes(tuple(types), tuple(sizes), sum(sizes), offsets, span)


_read_types_once = lru_cache(maxsize=256)(_read_types)
