"""The msgpack bodies of frames: HELLO, ABORT, and the types of a message's arrays.

Both transports between processes use these. Bytes that arrive are decoded into exactly
these types and no others, and sizes are checked before anything is allocated.
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
from placer.channel.types import MAX_TEXT, Array, Cause, Text

ITEM_BYTES: Final = tuple(dtype.itemsize for dtype in DTYPES)

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
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
"""The code of the dtype (its index in `payload.DTYPES`) and the shape of each array."""


class InvalidFrame(Exception):  # noqa: N818 - the outcome of a check
    """A frame that does not pass a check; the text says which check."""


class Hello(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The sender, the receiver, and the sorted names of all nodes, which must agree."""

    job: Text
    node: Text
    to: Text
    nodes: list[Text]


Body = TypeVar("Body")
_ENCODER = msgspec.msgpack.Encoder()
_HELLO = msgspec.msgpack.Decoder(Hello)
_CAUSE = msgspec.msgpack.Decoder(Cause)
encode = _ENCODER.encode


def decode(
    decoder: msgspec.msgpack.Decoder[Body], body: bytes | memoryview[int]
) -> Body:
    """Decode msgpack bytes; raises InvalidFrame when the decoder rejects them."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidFrame(str(error)) from None


def read_hello(body: bytes | memoryview[int]) -> Hello:
    """Decode the body of a HELLO; raises InvalidFrame when it is malformed."""
    return decode(_HELLO, body)


def encode_cause(cause: Cause) -> bytes:
    """Return the body of an ABORT; texts are truncated to `MAX_TEXT` characters."""
    texts = (cause.node, cause.where, cause.what)
    return encode([text[:MAX_TEXT] for text in texts])


def read_cause(body: bytes | memoryview[int]) -> Cause:
    """Decode the body of an ABORT; raises InvalidFrame when it is malformed."""
    return decode(_CAUSE, body)


def types_of(arrays: list[Array]) -> Types:
    """Return the types of arrays that passed `payload.check_arrays`."""
    return [(CODES[array.dtype], array.shape) for array in arrays]


def array_sizes(types: Types) -> list[int]:
    """Return the exact size of each array in bytes.

    Raises InvalidFrame for shapes that no array may have.
    """
    sizes = []
    for code, shape in types:
        size = prod(shape)
        # numpy refuses an empty array whose other dimensions overflow: 0 x 2**63.
        if size == 0 and prod(n for n in shape if n) > MAX_EXTENT:
            raise InvalidFrame("dimensions")
        sizes.append(size * ITEM_BYTES[code])
    return sizes
