"""What may be in a message, and how its bytes are cut for the wire.

The payload of a message is the bytes of its arrays, C order, one after the other
without gaps. It travels in pieces of at most `CHUNK` bytes: large arrays are cut without
a copy, runs of small ones are joined into one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final

import ml_dtypes
import numpy as np
import numpy.typing as npt

from placer.channel.protocol import Array
from placer.errors import RunError
from placer.memory.arena import Arena

CHUNK: Final = 1 << 20
JOIN: Final = 64 << 10
"""Arrays below this are copied into a joined piece; a copy is cheaper than a frame."""

MAX_RANK: Final = 32
MAX_ARRAYS: Final = 16384
MAX_EXTENT: Final = 2**48
"""The largest product of the dimensions of an array that are not 0."""

Piece = bytes | memoryview

# The position in this tuple is the code on the wire: append only.
DTYPES: Final[tuple[np.dtype[Any], ...]] = tuple(
    np.dtype(kind)
    for kind in (
        np.bool_,
        np.int8,
        np.uint8,
        np.int16,
        np.uint16,
        np.int32,
        np.uint32,
        np.int64,
        np.uint64,
        np.float16,
        np.float32,
        np.float64,
        ml_dtypes.bfloat16,
    )
)
_ARRAYS: Final = (np.ndarray, np.generic)  # a tuple: an X | Y is built each time
CODES: Final = {dtype: code for code, dtype in enumerate(DTYPES)}


def sendable(arrays: Sequence[Array], what: Callable[[], str]) -> list[Array]:
    """The arrays C-contiguous (copied only where they are not), all checked.

    `what` names the message in the RunError for a dtype outside the list or more arrays
    than `MAX_ARRAYS`.
    """
    if len(arrays) > MAX_ARRAYS:
        raise RunError(
            f"{what()}: {len(arrays)} arrays are too many for one message "
            f"({MAX_ARRAYS} at most)"
        )
    checked = []
    for i, array in enumerate(arrays):
        if not isinstance(array, _ARRAYS):
            raise RunError(f"{what()}: array {i} is a {type(array).__name__}")
        if array.dtype not in CODES:
            raise RunError(
                f"{what()}: array {i} has dtype {array.dtype}, which no value has"
            )
        extent = array.size or prod(n for n in array.shape if n)
        if array.ndim > MAX_RANK or extent > MAX_EXTENT:
            raise RunError(f"{what()}: array {i} has shape {list(array.shape)}")
        checked.append(np.asarray(array, order="C"))
    return checked


def check_size(nbytes: int, maximum: int, what: Callable[[], str]) -> None:
    """RunError for a message that carries more than `maximum` bytes."""
    if nbytes > maximum:
        raise RunError(
            f"{what()}: a message of {nbytes} bytes is over the maximum of {maximum}",
            hint="take a smaller batch, or place parameters on more nodes",
        )


def as_bytes(array: Array) -> npt.NDArray[np.uint8]:
    """The bytes of a C-contiguous array as a flat view.

    `reshape` and `view` take what `memoryview.cast` does not: bfloat16, empty shapes.
    """
    return array.reshape(-1).view(np.uint8)


def cut(arrays: Sequence[Array]) -> list[Piece]:
    """The payload in pieces of 1 to `CHUNK` bytes; none for an empty payload."""
    pieces: list[Piece] = []
    run: list[bytes] = []
    length = 0
    for array in arrays:
        if array.nbytes < JOIN:
            run.append(array.tobytes())
            length += array.nbytes
            if length < JOIN:
                continue
        if length:
            pieces.append(b"".join(run))
            run, length = [], 0
        if array.nbytes >= JOIN:
            flat = as_bytes(array).data
            pieces += [flat[at : at + CHUNK] for at in range(0, flat.nbytes, CHUNK)]
    if length:
        pieces.append(b"".join(run))
    return pieces


def fill(
    out: Sequence[Array | None] | None, arrays: list[Array], what: Callable[[], str]
) -> list[Array]:
    """The received arrays, each copied into its `out` unless it lies there already.

    RunError where `out` has another length, dtype or shape, or cannot be written to.
    """
    if out is None:
        return arrays
    if len(out) != len(arrays):
        raise RunError(f"{what()}: {len(arrays)} arrays came, {len(out)} were expected")
    result = []
    for i, (array, target) in enumerate(zip(arrays, out, strict=True)):
        if target is None or target is array:
            result.append(array)
            continue
        if not fits(target, array.dtype, array.shape):
            raise RunError(
                f"{what()}: array {i} is {array.dtype}{list(array.shape)}, the buffer for "
                f"it is {target.dtype}{list(target.shape)} or cannot be written to"
            )
        np.copyto(target, array)
        result.append(target)
    return result


def fits(target: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    """Whether `target` can be received into as an array of this dtype and shape."""
    return (
        target.dtype == dtype
        and target.shape == shape
        and target.flags.c_contiguous
        and target.flags.writeable
    )


def space(
    types: Sequence[tuple[np.dtype[np.generic], tuple[int, ...]]],
    arena: Arena,
    out: Sequence[Array | None] | None,
) -> list[Array]:
    """The arrays to receive into: those of `out` that fit, the others fresh."""
    if out is None or len(out) != len(types):
        return arena.take_all(types)
    given = [
        array if array is not None and fits(array, *kind) else None
        for array, kind in zip(out, types, strict=True)
    ]
    fresh = iter(
        arena.take_all(
            kind for array, kind in zip(given, types, strict=True) if array is None
        )
    )
    return [array if array is not None else next(fresh) for array in given]
