"""The header of a message: its key and types, and its payload if that is small."""

from __future__ import annotations

import struct
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from placer.channel import wire_bodies
from placer.channel.payload import DTYPES, MAX_ARRAYS
from placer.channel.protocol import Array, Key
from placer.channel.shared.frames import (
    HEADER,
    INLINE,
    MAGIC,
    MAX_FRAME,
    Kind,
    frame,
)
from placer.channel.shared.layout import Type
from placer.channel.wire_bodies import InvalidFrame, Types
from placer.memory.arena import ALIGNMENT

MESSAGE_HEADER: Final = struct.Struct(HEADER.format + "qqq")
REFERENCE: Final = struct.Struct("<IIQ")
MAX_LONG: Final = 2 << 20
"""Bytes of types and references in the LONG frames of a message at most."""
MAX_TYPES: Final = MAX_FRAME - MESSAGE_HEADER.size - ALIGNMENT - INLINE
"""Bytes of types and references that fit into a MESSAGE with any inline payload."""
CACHED_TYPES: Final = 8 << 10
"""Types of at most so many bytes are cached: every step has the same messages."""

_KEY: Final = struct.Struct("<qqq")
_TYPES: Final = msgspec.msgpack.Decoder(Types)
_PADDING: Final = tuple(bytes(n) for n in range(ALIGNMENT))


class ArrayTypes(NamedTuple):
    """The types of a message's arrays, the size of each, and `total`, all in bytes.

    `offsets` and `span` are the offsets and the length of an inline payload of all the
    arrays, each aligned.
    """

    types: tuple[Type, ...]
    sizes: tuple[int, ...]
    total: int
    offsets: tuple[int, ...]
    span: int


@dataclass(slots=True)
class Contents:
    """A decoded header; `references` are (region, offset) by the index of the array.

    `copied_nbytes` are the bytes of the arrays without a reference; `offsets` and
    `span` are their offsets and length in an inline payload.
    """

    number: int
    key: Key
    arrays: ArrayTypes
    references: dict[int, tuple[int, int]]
    copied_nbytes: int
    offsets: tuple[int, ...]
    span: int


def encode_types(arrays: list[Array]) -> tuple[bytes, ArrayTypes]:
    """Return the types of arrays, which are checked, encoded and as `ArrayTypes`."""
    body = wire_bodies.encode(wire_bodies.types_of(arrays))
    return body, decode_types(body)


def inline_offsets(
    sizes: Sequence[int], references: Container[int]
) -> tuple[tuple[int, ...], int]:
    """Return the offsets of arrays in an inline payload, and its length.

    `references` are the indices of arrays that are not in it.
    """
    offsets = []
    span = 0
    for i, size in enumerate(sizes):
        offsets.append(span)
        if i not in references:
            span += -(-size // ALIGNMENT) * ALIGNMENT
    return tuple(offsets), span


def encode_header(
    number: int,
    key: Key,
    types: bytes,
    arrays: list[Array],
    references: Mapping[int, tuple[int, int]],
    span: int,
) -> list[bytes]:
    """Return the LONG frames that a header needs, if any, then its MESSAGE frame.

    `types` are encoded, `references` are (region, offset) by the index of the array. A
    payload of 1 to `INLINE` bytes, which `span` says, is in the MESSAGE frame.
    """
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
        MAGIC, Kind.MESSAGE, 0, 0, number, len(references), len(types), *key
    )
    parts = [head, rest]
    if 0 < span <= INLINE:
        parts.append(_PADDING[-(MESSAGE_HEADER.size + len(rest)) % ALIGNMENT])
        for i, array in enumerate(arrays):
            if i not in references:
                parts += array.tobytes(), _PADDING[-array.nbytes % ALIGNMENT]
    return [*long_frames, b"".join(parts)]


def decode_header(
    number: int,
    reference_count: int,
    types_length: int,
    data: memoryview[int],
    long_data: bytes,
    maximum: int,
) -> tuple[Contents, memoryview[int]]:
    """Decode a MESSAGE frame; return its contents and its inline payload.

    `number`, `reference_count` and `types_length` are a, b and c of the frame `data`,
    and `long_data` is what the LONG frames before it brought. `maximum` bounds the
    bytes of arrays without a reference. Raises InvalidFrame when a check fails; all
    sizes are checked before anything is allocated for them.
    """
    if reference_count > MAX_ARRAYS or len(data) < MESSAGE_HEADER.size:
        raise InvalidFrame("length")
    expected = types_length + reference_count * REFERENCE.size
    end = MESSAGE_HEADER.size if long_data else MESSAGE_HEADER.size + expected
    # A copy, so that the receive buffer can be reused.
    rest = long_data or bytes(data[MESSAGE_HEADER.size : end])
    if len(rest) != expected:
        raise InvalidFrame("length")
    arrays = decode_types(rest[:types_length])
    key = Key._make(_KEY.unpack_from(data, HEADER.size))
    references: dict[int, tuple[int, int]] = {}
    copied_nbytes, offsets, span = arrays.total, arrays.offsets, arrays.span
    if reference_count:
        references = _read_references(rest[types_length:], len(arrays.types))
        copied_nbytes -= sum(arrays.sizes[i] for i in references)
        offsets, span = inline_offsets(arrays.sizes, references)
    if copied_nbytes > maximum:
        raise InvalidFrame(
            f"a message of {copied_nbytes} bytes is over the maximum of {maximum}"
        )
    if 0 < span <= INLINE:
        end += -end % ALIGNMENT
        if len(data) != end + span:
            raise InvalidFrame("sizes do not add up")
    elif len(data) != end:
        raise InvalidFrame("length")
    return (
        Contents(number, key, arrays, references, copied_nbytes, offsets, span),
        data[end:],
    )


def decode_types(body: bytes) -> ArrayTypes:
    """Decode the types of a message; raises InvalidFrame for types not allowed."""
    return (_cached_types if len(body) <= CACHED_TYPES else _decode_types)(body)


def _decode_types(body: bytes) -> ArrayTypes:
    decoded = wire_bodies.decode(_TYPES, body)
    sizes = tuple(wire_bodies.array_sizes(decoded))
    types = tuple((DTYPES[code], shape) for code, shape in decoded)
    return ArrayTypes(types, sizes, sum(sizes), *inline_offsets(sizes, ()))


_cached_types = lru_cache(maxsize=256)(_decode_types)


def _read_references(body: bytes, array_count: int) -> dict[int, tuple[int, int]]:
    references = {i: (region, at) for i, region, at in REFERENCE.iter_unpack(body)}
    # A shorter dict has an array twice; body is not empty here.
    if len(references) * REFERENCE.size != len(body) or max(references) >= array_count:
        raise InvalidFrame("references")
    return references
