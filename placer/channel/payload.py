"""The arrays of a message: checks before sending, and memory for receiving."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Final

import ml_dtypes  # noqa: F401  (numpy knows bfloat16 by it)
import numpy as np
import numpy.typing as npt

from placer.channel.types import Array, ArrayType
from placer.errors import RunError
from placer.place.types import ITEM_BYTES
from placer.system.memory.arena import Arena

MAX_RANK: Final = 32
"""The largest number of dimensions of an array."""
MAX_ARRAYS: Final = 16384
"""The largest number of arrays in a message."""
MAX_EXTENT: Final = 2**48
"""The largest product of the nonzero dimensions of an array."""

# The index in this tuple is the code of the dtype on the wire.
DTYPES: Final[tuple[np.dtype[Any], ...]] = tuple(
    np.dtype(name) for name in ITEM_BYTES if name != "key"
)
# A tuple, because isinstance would build a union `X | Y` at each call.
_ARRAYS: Final = (np.ndarray, np.generic)
CODES: Final = {dtype: code for code, dtype in enumerate(DTYPES)}


def check_arrays(arrays: Sequence[Array], what: Callable[[], str]) -> list[Array]:
    """Return the arrays C-contiguous; only arrays with another layout are copied.
    Raises RunError for too many arrays, a wrong dtype or too large a shape; `what`
    names the message in the error."""
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
                f"{what()}: array {i} has the unsupported dtype {array.dtype}"
            )
        extent = array.size or prod(n for n in array.shape if n)
        if array.ndim > MAX_RANK or extent > MAX_EXTENT:
            raise RunError(
                f"{what()}: array {i} is too large: shape {list(array.shape)}"
            )
        checked.append(np.asarray(array, order="C"))
    return checked


def as_bytes(array: Array) -> npt.NDArray[np.uint8]:
    """Return a flat view of the bytes of a C-contiguous array. `memoryview.cast` would
    refuse bfloat16 and empty shapes."""
    return array.reshape(-1).view(np.uint8)


def read_only_views(arrays: Sequence[Array]) -> list[Array]:
    views = [array.view() for array in arrays]
    for view in views:
        view.flags.writeable = False
    return views


def fill_out(
    out: Sequence[Array | None] | None, arrays: list[Array], what: Callable[[], str]
) -> list[Array]:
    """Return the received arrays, each copied into its array of `out` if given. Raises
    RunError if `out` has another length, dtype or shape, or is read-only; `what` names
    the message in the error."""
    if out is None:
        return arrays
    if len(out) != len(arrays):
        raise RunError(
            f"{what()}: {len(arrays)} arrays arrived, {len(out)} were expected"
        )
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
    """Return True if an array of this dtype and shape can be received into `target`."""
    return (
        target.dtype == dtype
        and target.shape == shape
        and target.flags.c_contiguous
        and target.flags.writeable
    )


def allocate(
    types: Sequence[ArrayType],
    arena: Arena,
    out: Sequence[Array | None] | None,
    views: Mapping[int, Array],
) -> list[Array]:
    """Return the arrays to receive into: `views`, arrays of `out` that fit, or new arrays."""
    usable = dict(views)
    if out is not None and len(out) == len(types):
        for i, (array, kind) in enumerate(zip(out, types, strict=True)):
            if i not in views and array is not None and fits(array, *kind):
                usable[i] = array
    missing = [i for i in range(len(types)) if i not in usable]
    new = arena.allocate_all(types[i] for i in missing)
    usable.update(zip(missing, new, strict=True))
    return [usable[i] for i in range(len(types))]
