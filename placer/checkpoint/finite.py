"""The check of values that a run keeps or starts from: all of them are finite.

A run that continued from others would diverge at once. With `train.nan: warn` nothing is
checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import ml_dtypes  # noqa: F401  (numpy knows bfloat16 by it)
import numpy as np

from placer.checkpoint.tensor_file import StoredTensor

_CHUNK: Final = 1 << 16
"""The number of elements that are compared at a time, so that they stay in the cache."""
HINT: Final = (
    "a lower learning rate or train.clip may avoid it; with train.nan: warn, values that"
    " are not finite are kept"
)


def find_not_finite(arrays: Mapping[str, Any]) -> str:
    """Return what is wrong with the first array that has a value which is not finite, or
    nothing."""
    for name, array in arrays.items():
        if not _is_finite(array):
            return f"'{name}' is not finite"
    return ""


def find_row_not_finite(table: str, arrays: Mapping[str, Any]) -> str:
    """Return what is wrong if rows of a sparse table are not finite, or nothing.

    `arrays` are those of a partition: values, slots and scores all count.
    """
    if all(_is_finite(each) for each in arrays.values()):
        return ""
    return f"a row of '{table}' is not finite"


def read_array(content: bytes, tensor: StoredTensor, dtype: str) -> np.ndarray:
    """Return a tensor of the bytes of a safetensors file, flat, converted to a dtype in
    which its values may be infinite."""
    values = content[tensor.offset : tensor.offset + tensor.nbytes]
    with np.errstate(over="ignore"):
        return np.frombuffer(values, tensor.dtype).astype(dtype, copy=False)


def _is_finite(array: Any) -> bool:
    if array.dtype.kind in "iu":
        return True
    flat = array.reshape(-1)
    return all(
        np.isfinite(flat[at : at + _CHUNK]).all() for at in range(0, flat.size, _CHUNK)
    )
