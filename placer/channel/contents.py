"""The types of a message's arrays, as its header has them, and where each array is.

Sizes are exact integers here, so no product of dimensions can overflow.
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
"""Types of at most so many bytes are cached: every step has the same messages."""

_Code = Annotated[int, msgspec.Meta(ge=0, lt=len(DTYPES))]
_Size = Annotated[int, msgspec.Meta(ge=0, le=MAX_EXTENT)]
_Shape = Annotated[tuple[_Size, ...], msgspec.Meta(max_length=MAX_RANK)]
# The code of the dtype (its index in `payload.DTYPES`) and the shape of each array.
_Types = Annotated[list[tuple[_Code, _Shape]], msgspec.Meta(max_length=MAX_ARRAYS)]
_TYPES: Final = msgspec.msgpack.Decoder(_Types)


@dataclass(frozen=True)
class Contents:
    """What the header of a message says of its arrays.

    `encoded` are their types on the wire. `sizes` and `nbytes` are the bytes of each and
    of all, `copied_nbytes` those of the arrays without a reference. `references` are by
    the index of the array. `offsets` and `span` are the offsets and the length of an
    inline payload of the other arrays, in which each is aligned.
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
        """Whether the payload is in the frame of the header."""
        return self.span <= INLINE

    @cached_property
    def pieces(self) -> tuple[tuple[Fragment, ...], ...]:
        """The fragments in each piece of the payload."""
        return copied_pieces(self.types, self.references)


def describe_arrays(
    arrays: Sequence[Array], references: tuple[Reference, ...] = ()
) -> Contents:
    """Return the contents of a message of arrays that passed `payload.check_arrays`."""
    types = [(CODES[array.dtype], array.shape) for array in arrays]
    return read_contents(frames.to_msgpack(types), references)


def read_contents(types: bytes, references: tuple[Reference, ...]) -> Contents:
    """Return the contents of a message with these types and references.

    Raises InvalidFrame when they are malformed, and for shapes that no array may have.
    """
    read = _read_once if len(types) <= CACHED_TYPES else _read
    return read(types, references)


def _read(encoded: bytes, references: tuple[Reference, ...]) -> Contents:
    types, sizes = [], []
    for code, shape in frames.from_msgpack(_TYPES, encoded):
        dtype = DTYPES[code]
        size = prod(shape)
        # numpy refuses an empty array whose other dimensions overflow: 0 x 2**63.
        if size == 0 and prod(n for n in shape if n) > MAX_EXTENT:
            raise InvalidFrame("dimensions")
        types.append((dtype, shape))
        sizes.append(size * dtype.itemsize)
    places = {reference.array: reference for reference in references}
    # An array has one reference at most.
    if len(places) != len(references) or max(places, default=-1) >= len(types):
        raise InvalidFrame("references")
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
    """Return the contents of a message that has arrived with an inline payload.

    `maximum` bounds the bytes of arrays without a reference. Raises InvalidFrame when a
    check fails; all sizes are checked before anything is allocated for them.
    """
    contents = read_contents(header.types, header.references)
    if contents.copied_nbytes > maximum:
        raise InvalidFrame(
            f"a message of {contents.copied_nbytes} bytes is over the maximum of "
            f"{maximum}"
        )
    if len(payload) != (contents.span if contents.is_inline else 0):
        raise InvalidFrame("sizes do not add up")
    return contents
