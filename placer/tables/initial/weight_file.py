"""Read a range of a parameter's elements from a safetensors file, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (numpy knows bfloat16 by it)
import numpy as np
import numpy.typing as npt

from placer.config.safetensors import read_tensors
from placer.errors import DataError


def read_flat_range(
    path: Path, name: str, shape: tuple[int, ...], start: int, stop: int
) -> npt.NDArray[Any]:
    """Return elements [start, stop) of the tensor `name`, flattened in C order.

    The result has the shape [stop - start] and the file's dtype. Raises DataError if
    the file cannot be read, or has no tensor of that name and shape.
    """
    try:
        tensor = read_tensors(path).get(name)
        if tensor is None or tensor.shape != shape:
            actual = "no such tensor" if tensor is None else f"{list(tensor.shape)}"
            raise DataError(f"{path} has {actual} for '{name}', which is {list(shape)}")
        dtype = np.dtype(tensor.dtype)
        offset = tensor.offset + start * dtype.itemsize
        elements = np.fromfile(path, dtype, stop - start, offset=offset)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as safetensors: {error}") from error
    if elements.size != stop - start:
        raise DataError(f"{path} ends within '{name}'")
    return elements
