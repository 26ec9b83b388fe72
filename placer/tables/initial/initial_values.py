"""Computes initial values of parameters; a slice or row has the bits of the whole.

Random values are drawn element by element (`placer.tables.initial.draws`). An orthogonal
matrix is computed from normal elements that are drawn in the same way.
"""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np

from placer.errors import PlacerError
from placer.plan.plan import Parameter
from placer.plan.settings.training.initializers import (
    check_shape,
    file_of,
    form_of,
)
from placer.plan.settings.training.slicing import Block
from placer.tables.initial.draws import (
    DISTRIBUTIONS,
    Floats,
    Key,
    fill_random,
    normal,
    parameter_key,
)
from placer.tables.initial.orthogonal import orthonormal_rows
from placer.tables.initial.weight_file import read_flat_range


def compute_values(
    parameter: Parameter, block: Block, seed: int, folder: Path
) -> np.ndarray:
    """Return the initial values of a block of a parameter as a flat array.

    Args:
        parameter: the parameter. Random values depend on its name.
        block: the block.
        seed: the seed of the model.
        folder: the folder of the files that initializers name.

    Returns:
        An array of the parameter's dtype. It is computed in float64 and then cast, so
        float32 and float64 values agree up to rounding. Values from a file
        (`{"file": path}`) are cast from the file's dtype.

    Raises:
        PlacerError: if the initializer cannot fill the parameter.
    """
    init, name, shape = parameter.init, parameter.name, parameter.shape
    start, stop = block.start, block.stop
    if (file := file_of(init)) is not None:
        values = read_flat_range(folder / file, name, shape, start, stop)
        return values.astype(parameter.dtype)
    if mistake := check_shape(init, shape):
        raise PlacerError(f"parameter {name}: {mistake.message}")
    assert 0 <= start <= stop <= prod(shape), (name, start, stop, shape)
    out = np.empty(stop - start, parameter.dtype)
    if start == stop:
        return out
    form, argument = form_of(init, shape)
    match form:
        case "constant":
            out.fill(argument)
        case "identity":
            row, column = divmod(np.arange(start, stop), shape[1])
            out[:] = np.where(row == column, argument, 0.0)
        case "orthogonal":
            out[:] = argument * _orthogonal(
                parameter_key(seed, name), shape, start, stop
            )
        case _:
            draw = DISTRIBUTIONS[form](*argument)
            fill_random(out, draw, parameter_key(seed, name), start, prod(shape[1:]))
    return out


def _orthogonal(key: Key, shape: tuple[int, ...], start: int, stop: int) -> Floats:
    """Return elements [start, stop) of an orthogonal matrix.

    All dimensions except the last form the rows. The rows are orthonormal, or the columns if
    the matrix has fewer columns. For a wide matrix only the rows of the range are computed.
    """
    height, width = prod(shape[:-1]), shape[-1]
    wide = height <= width
    first, last = (start // width, -(-stop // width)) if wide else (0, width)
    normals = np.empty((last, max(height, width)))
    fill_random(normals.reshape(-1), normal(0.0, 1.0), key, 0, normals.shape[1])
    rows = orthonormal_rows(normals, first)
    whole = rows if wide else rows.T
    return whole.reshape(-1)[start - first * width : stop - first * width]
