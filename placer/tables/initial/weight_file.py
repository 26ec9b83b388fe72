"""Reads a range of a parameter's elements from a safetensors file."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (adds bfloat16 to numpy)
import numpy as np
import numpy.typing as npt

from placer.checkpoint.safetensors import open_tensors
from placer.errors import DataError


def read_flat_range(
    path: Path, name: str, shape: tuple[int, ...], start: int, stop: int
) -> npt.NDArray[Any]:
    """Return elements [start, stop) of the tensor `name`, flattened in C order.

    Only the rows that contain these elements are read.

    Returns:
        An array of shape [stop - start] and the file's dtype.

    Raises:
        DataError: if the file cannot be read, or has no tensor of this name and shape.
    """
    try:
        with open_tensors(path) as (types, file):
            type_ = types.get(name)
            if type_ is None or type_.shape != shape:
                actual = "no such tensor" if type_ is None else f"{list(type_.shape)}"
                raise DataError(
                    f"{path} has {actual} for '{name}' of shape {list(shape)}"
                )
            if not shape or start == stop:
                return np.asarray(file.get_tensor(name)).reshape(-1)[start:stop]
            size = prod(shape[1:])
            first, last = start // size, -(-stop // size)
            rows = file.get_slice(name)[first:last].reshape(-1)
            return np.asarray(rows[start - first * size : stop - first * size])
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as safetensors: {error}") from error
