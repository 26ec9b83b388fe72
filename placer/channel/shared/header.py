"""The frame that opens a message: what the message holds, and small payloads."""

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
from placer.channel.wire_bodies import Refused, Types
from placer.memory.arena import ALIGNMENT

HEAD: Final = struct.Struct(HEADER.format + "qqq")
PLACE: Final = struct.Struct("<IIQ")
MAX_LONG: Final = 2 << 20
ROOM: Final = MAX_FRAME - HEAD.size - ALIGNMENT - INLINE
"""Bytes of types and places that are sure to fit into a MESSAGE."""
REMEMBERED: Final = 8 << 10
"""Types of so few bytes are remembered: the same messages come step after step."""

_ADDRESS: Final = struct.Struct("<qqq")
_TYPES: Final = msgspec.msgpack.Decoder(Types)
_GAPS: Final = tuple(bytes(n) for n in range(ALIGNMENT))


class Arrays(NamedTuple):
    """The types of a message's arrays, the bytes of each, and of all.

    `offsets` are where they lie in a payload that holds them all, `span` is its length.
    """

    types: tuple[Type, ...]
    sizes: tuple[int, ...]
    total: int
    offsets: tuple[int, ...]
    span: int


@dataclass(slots=True)
class Contents:
    """What a message holds; `places` are (region, offset) by array.

    `carried` are the bytes of the arrays that have none, `offsets` and `span` where
    they lie in a small payload.
    """

    number: int
    key: Key
    arrays: Arrays
    places: dict[int, tuple[int, int]]
    carried: int
    offsets: tuple[int, ...]
    span: int


def describe(arrays: list[Array]) -> tuple[bytes, Arrays]:
    """The types of arrays that passed `payload.sendable`: as bytes, and what they say."""
    body = wire_bodies.encode(wire_bodies.types_of(arrays))
    return body, read_types(body)


def spread(sizes: Sequence[int], places: Container[int]) -> tuple[tuple[int, ...], int]:
    """Where arrays without places lie in a small payload, and how long that is."""
    offsets = []
    span = 0
    for i, size in enumerate(sizes):
        offsets.append(span)
        if i not in places:
            span += -(-size // ALIGNMENT) * ALIGNMENT
    return tuple(offsets), span


def opening(
    number: int,
    key: Key,
    types: bytes,
    arrays: list[Array],
    places: Mapping[int, tuple[int, int]],
    span: int,
) -> list[bytes]:
    """The LONG frames of a message, if it needs any, and its MESSAGE.

    The payload is in it if its `span` is not too long.
    """
    rest = types
    if places:
        rest += b"".join(PLACE.pack(i, *place) for i, place in places.items())
    before = []
    if len(rest) > ROOM:
        before = [
            frame(Kind.LONG, body=rest[at : at + ROOM])
            for at in range(0, len(rest), ROOM)
        ]
        rest = b""
    head = HEAD.pack(MAGIC, Kind.MESSAGE, 0, 0, number, len(places), len(types), *key)
    parts = [head, rest]
    if 0 < span <= INLINE:
        parts.append(_GAPS[-(HEAD.size + len(rest)) % ALIGNMENT])
        for i, array in enumerate(arrays):
            if i not in places:
                parts += array.tobytes(), _GAPS[-array.nbytes % ALIGNMENT]
    return [*before, b"".join(parts)]


def read_opening(
    number: int,
    placed: int,
    length: int,
    data: memoryview[int],
    before: bytes,
    maximum: int,
) -> tuple[Contents, memoryview[int]]:
    """A MESSAGE, after what LONG frames brought, and the payload that is in it.

    `number`, `placed` and `length` are its a, b and c. All sizes are checked before
    anything is allocated for them.
    """
    if placed > MAX_ARRAYS or len(data) < HEAD.size:
        raise Refused("length")
    said = length + placed * PLACE.size
    end = HEAD.size if before else HEAD.size + said
    rest = before or bytes(data[HEAD.size : end])
    if len(rest) != said:
        raise Refused("length")
    arrays = read_types(rest[:length])
    key = Key._make(_ADDRESS.unpack_from(data, HEADER.size))
    places: dict[int, tuple[int, int]] = {}
    carried, offsets, span = arrays.total, arrays.offsets, arrays.span
    if placed:
        places = _read_places(rest[length:], len(arrays.types))
        carried -= sum(arrays.sizes[i] for i in places)
        offsets, span = spread(arrays.sizes, places)
    if carried > maximum:
        raise Refused(f"a message of {carried} bytes is over the maximum of {maximum}")
    if 0 < span <= INLINE:
        end += -end % ALIGNMENT
        if len(data) != end + span:
            raise Refused("sizes do not add up")
    elif len(data) != end:
        raise Refused("length")
    return Contents(number, key, arrays, places, carried, offsets, span), data[end:]


def read_types(body: bytes) -> Arrays:
    """The types that msgpack bytes tell of; `Refused` for any that are not allowed."""
    return (_known if len(body) <= REMEMBERED else _read_types)(body)


def _read_types(body: bytes) -> Arrays:
    found = wire_bodies.decode(_TYPES, body)
    sizes = tuple(wire_bodies.sizes(found))
    types = tuple((DTYPES[code], shape) for code, shape in found)
    return Arrays(types, sizes, sum(sizes), *spread(sizes, ()))


_known = lru_cache(maxsize=256)(_read_types)


def _read_places(body: bytes, arrays: int) -> dict[int, tuple[int, int]]:
    places = {i: (region, at) for i, region, at in PLACE.iter_unpack(body)}
    if len(places) * PLACE.size != len(body) or max(places) >= arrays:
        raise Refused("places")
    return places
