"""Checks that saved and loaded values are finite.

A run that starts from values that are not finite would diverge immediately. With
`train.nan: warn`, the caller skips this check.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import ml_dtypes  # noqa: F401  (adds bfloat16 to numpy)
import numpy as np

from placer.checkpoint.tensor_file import StoredTensor

_CHUNK: Final = 1 << 16
"""The number of elements to check at a time. They fit into the processor's cache."""
HINT: Final = (
    "try a lower learning rate or train.clip; or set train.nan: warn to keep values that"
    " are not finite"
)


def find_not_finite(arrays: Mapping[str, Any]) -> str:
    """Return a message about the first array with a value that is not finite, or ""."""
    for name, array in arrays.items():
        if not _is_finite(array):
            return f"'{name}' is not finite"
    return ""


def find_nan(arrays: Mapping[str, Any]) -> str:
    """Return a message about the first array that contains NaN, or "".

    An optax optimizer may begin with infinity, as a running minimum does.
    """
    for name, array in arrays.items():
        if _has_nan(array):
            return f"'{name}' contains nan"
    return ""


def find_row_not_finite(table: str, arrays: Mapping[str, Any]) -> str:
    """Return a message if a row of a sparse table is not finite, or "".

    Args:
        arrays: the arrays of a partition. Values, slots and scores are all checked.
    """
    if all(_is_finite(each) for each in arrays.values()):
        return ""
    return f"a row of '{table}' is not finite"


def read_array(content: bytes, tensor: StoredTensor, dtype: str) -> np.ndarray:
    """Return a tensor from the content of a safetensors file, as a flat array of `dtype`.

    Values that are too large for `dtype` become infinite.
    """
    values = content[tensor.offset : tensor.offset + tensor.nbytes]
    with np.errstate(over="ignore"):
        return np.frombuffer(values, tensor.dtype).astype(dtype, copy=False)


def _is_finite(array: Any) -> bool:
    return all(np.isfinite(part).all() for part in _parts(array))


def _has_nan(array: Any) -> bool:
    return any(np.isnan(part).any() for part in _parts(array))


def _parts(array: Any) -> Iterator[Any]:
    """Yield parts of an array of floats; nothing for integers and truth values."""
    if array.dtype.kind in "iub":
        return
    flat = array.reshape(-1)
    for at in range(0, flat.size, _CHUNK):
        yield flat[at : at + _CHUNK]
