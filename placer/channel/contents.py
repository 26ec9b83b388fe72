"""The types of a message's arrays, as encoded in its header, and the place of each array.

Sizes are exact Python integers, so products of dimensions cannot overflow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Annotated, Final

import msgspec

from placer.channel import frames
from placer.channel.frames import INLINE, InvalidFrame, Reference
from placer.channel.payload import CODES, DTYPES, MAX_ARRAYS, MAX_EXTENT, MAX_RANK
from placer.channel.pieces import Fragment, copied_pieces
from placer.channel.types import Array, ArrayType
from placer.system.memory.aligned import aligned_offsets

CACHED_TYPES: Final = 8 << 10
"""The largest encoded size in bytes of types to cache. Messages repeat in every step."""

_Code = Annotated[int, msgspec.Meta(ge=0, lt=len(DTYPES))]
_Size = Annotated[int, msgspec.Meta(ge=0, le=MAX_EXTENT)]
_Shape = Annotated[tuple[_Size, ...], msgspec.Meta(max_length=MAX_RANK)]
# The code of the dtype (its index in `payload.DTYPES`) and the shape of each array.
_Types = Annotated[list[tuple[_Code, _Shape]], msgspec.Meta(max_length=MAX_ARRAYS)]
_TYPES: Final = msgspec.msgpack.Decoder(_Types)


@dataclass(frozen=True)
class Contents:
    """The arrays of a message, as its header describes them.

    Attributes:
        encoded: the types of the arrays on the wire.
        types: the dtype and shape of each array.
        sizes: the bytes of each array.
        nbytes: the bytes of all arrays.
        copied_nbytes: the bytes of the arrays without a reference.
        references: the arrays in shared memory, by index.
        offsets: the aligned offset of each other array in an inline payload.
        span: the length of the inline payload.
    """

    encoded: bytes
    types: tuple[ArrayType, ...]
    sizes: tuple[int, ...]
    nbytes: int
    copied_nbytes: int
    references: Mapping[int, Reference]
    offsets: tuple[int, ...]
    span: int

    @property
    def is_inline(self) -> bool:
        """Whether the payload is inside the frame of the header."""
        return self.span <= INLINE

    @cached_property
    def pieces(self) -> tuple[tuple[Fragment, ...], ...]:
        return copied_pieces(self.types, self.references)


def describe_arrays(
    arrays: Sequence[Array], references: tuple[Reference, ...] = ()
) -> Contents:
    """Return the contents of a message; the arrays must have passed `payload.check_arrays`."""
    types = [(CODES[array.dtype], array.shape) for array in arrays]
    return read_contents(frames.to_msgpack(types), references)


def read_contents(types: bytes, references: tuple[Reference, ...]) -> Contents:
    """Return the contents of a message with these types and references. Raises
    InvalidFrame if they are malformed, or for an impossible shape."""
    read = _read_once if len(types) <= CACHED_TYPES else _read
    return read(types, references)


def _read(encoded: bytes, references: tuple[Reference, ...]) -> Contents:
    types, sizes = [], []
    for code, shape in frames.from_msgpack(_TYPES, encoded):
        dtype = DTYPES[code]
        size = prod(shape)
        # numpy refuses an empty array if its other dimensions overflow, such as 0 x 2**63.
        if size == 0 and prod(n for n in shape if n) > MAX_EXTENT:
            raise InvalidFrame("dimensions are too large")
        types.append((dtype, shape))
        sizes.append(size * dtype.itemsize)
    places = {reference.array: reference for reference in references}
    # Each array has at most one reference.
    if len(places) != len(references) or max(places, default=-1) >= len(types):
        raise InvalidFrame("wrong references to shared memory")
    nbytes = sum(sizes)
    offsets, span = aligned_offsets(sizes, places)
    return Contents(
        encoded,
        tuple(types),
        tuple(sizes),
        nbytes,
        nbytes - sum(sizes[i] for i in places),
        places,
        offsets,
        span,
    )


_read_once = lru_cache(maxsize=256)(_read)


def read_message(
    header: frames.Message, payload: memoryview[int], maximum: int
) -> Contents:
    """Return the contents of a received message with an inline payload.

    All sizes are checked before memory is allocated for them.

    Args:
        header: the header of the message.
        payload: the inline payload; empty if the payload follows in pieces.
        maximum: the largest allowed number of bytes of arrays without a reference.

    Raises:
        InvalidFrame: if a check fails.
    """
    contents = read_contents(header.types, header.references)
    if contents.copied_nbytes > maximum:
        raise InvalidFrame(
            f"a message of {contents.copied_nbytes} bytes is over the maximum of "
            f"{maximum}"
        )
    if len(payload) != (contents.span if contents.is_inline else 0):
        raise InvalidFrame("the payload size does not match the arrays")
    return contents
