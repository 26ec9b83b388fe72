"""Elements of a parameter from a safetensors file: no more of it is read than these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (numpy knows bfloat16 by it)
import numpy as np
import numpy.typing as npt

from placer.config.safetensors import read_tensors
from placer.errors import DataError


def flat_range(
    path: Path, name: str, shape: tuple[int, ...], start: int, stop: int
) -> npt.NDArray[Any]:
    """Elements [start, stop) of the tensor of that name, flattened in C order, in the
    file's dtype. DataError where the file has no such tensor of that shape."""
    try:
        tensor = read_tensors(path).get(name)
        if tensor is None or tensor.shape != shape:
            there = "no such tensor" if tensor is None else f"{list(tensor.shape)}"
            raise DataError(f"{path} has {there} for '{name}', which is {list(shape)}")
        dtype = np.dtype(tensor.dtype)
        at = tensor.at + start * dtype.itemsize
        found = np.fromfile(path, dtype, stop - start, offset=at)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as safetensors: {error}") from error
    if found.size != stop - start:
        raise DataError(f"{path} ends within '{name}'")
    return found
