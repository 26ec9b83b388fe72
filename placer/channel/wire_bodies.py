"""What frames say in msgpack: who speaks, what a message holds, why a run failed.

Both carriers between processes use these. Bytes that come in are decoded into exactly
these types and no others, and nothing is allocated before sizes have been checked.
"""

from __future__ import annotations

from math import prod
from typing import Annotated, Final, TypeVar

import msgspec

from placer.channel.payload import (
    CODES,
    DTYPES,
    MAX_ARRAYS,
    MAX_EXTENT,
    MAX_RANK,
)
from placer.channel.protocol import Array, Cause

MAX_TEXT: Final = 8192
ITEM_BYTES: Final = tuple(dtype.itemsize for dtype in DTYPES)

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
Types = Annotated[
    list[
        tuple[
            Annotated[int, msgspec.Meta(ge=0, lt=len(DTYPES))],
            Annotated[
                tuple[Annotated[int, msgspec.Meta(ge=0, le=MAX_EXTENT)], ...],
                msgspec.Meta(max_length=MAX_RANK),
            ],
        ]
    ],
    msgspec.Meta(max_length=MAX_ARRAYS),
]
"""For each array its dtype's code and its shape."""


class Refused(Exception):  # noqa: N818 - an outcome of a check, not an error of the run
    """A frame that does not pass a check."""


class Hello(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Who speaks to whom, and all nodes of the run, sorted: these must agree."""

    job: Text
    node: Text
    to: Text
    nodes: list[Text]


class CauseBody(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True
):
    """A root cause; longer texts are cut before they are sent."""

    node: Text
    where: Text
    what: Text


Body = TypeVar("Body")
_ENCODER = msgspec.msgpack.Encoder()
_HELLO = msgspec.msgpack.Decoder(Hello)
_CAUSE = msgspec.msgpack.Decoder(CauseBody)
encode = _ENCODER.encode


def decode(
    decoder: msgspec.msgpack.Decoder[Body], body: bytes | memoryview[int]
) -> Body:
    """What msgpack bytes say; `Refused` when they are not what the decoder reads."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(str(error)) from None


def read_hello(body: bytes | memoryview[int]) -> Hello:
    """A HELLO's body; `Refused` when it is malformed."""
    return decode(_HELLO, body)


def encode_cause(cause: Cause) -> bytes:
    """The body of an ABORT; texts are cut to `MAX_TEXT` characters."""
    texts = (cause.node, cause.where, cause.what)
    return encode(CauseBody(*(text[:MAX_TEXT] for text in texts)))


def read_cause(body: bytes | memoryview[int]) -> Cause:
    """An ABORT's body; `Refused` when it is malformed."""
    said = decode(_CAUSE, body)
    return Cause(said.node, said.where, said.what)


def types_of(arrays: list[Array]) -> Types:
    """The types of arrays that passed `payload.sendable`."""
    return [(CODES[array.dtype], array.shape) for array in arrays]


def sizes(types: Types) -> list[int]:
    """The bytes of each array, exactly; `Refused` for shapes that no array may have."""
    found = []
    for code, shape in types:
        size = prod(shape)
        # numpy refuses an empty array whose other dimensions overflow: 0 x 2**63.
        if size == 0 and prod(n for n in shape if n) > MAX_EXTENT:
            raise Refused("dimensions")
        found.append(size * ITEM_BYTES[code])
    return found
