"""Arrow columns of lists: each list is a whole row of an input."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from placer.errors import DataError
from placer.plan.settings.data.columns import Column


def list_shape(
    type_: pa.DataType, column: Column, source: str, name: str
) -> tuple[tuple[int, ...], pa.DataType]:
    """Return the shape of the rows of a column, and the type of their values.

    A list without a fixed size takes the size from the input; `rows_of_lists` checks
    it. Raises DataError if the input has too few dimensions.
    """
    shape: list[int] = []
    while True:
        if pa.types.is_fixed_size_list(type_):
            shape.append(type_.list_size)
        elif not _is_list(type_):
            return tuple(shape), type_
        elif len(shape) < len(column.shape):
            shape.append(column.shape[len(shape)])
        else:
            raise DataError(
                f"{source}: column '{name}' holds lists, but input '{column.name}'"
                f" is {column}",
                hint=f"declare the length of the lists: {column.name}:"
                f" {column.dtype}[batch, LENGTH]",
            )
        type_ = type_.value_type


def rows_of_lists(
    array: pa.Array, column: Column, source: str, name: str, first: int
) -> np.ndarray:
    """Return the values of some rows, [rows, *shape], from nested lists.

    Args:
        array: the rows.
        column: the input, which gives the shape.
        source: the text of the source, for messages.
        name: the name of the column.
        first: the number of the first row.

    Raises:
        DataError: if a list or a value is null, or a list has the wrong length.
    """
    shape = [len(array)]
    size = 1
    while True:
        if array.null_count:
            index = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
            raise DataError(
                f"{source}: column '{name}', row {first + index // size} is null",
                hint="replace nulls by numbers before you write the file",
            )
        if not pa.types.is_nested(array.type):
            break
        length = column.shape[len(shape) - 1]
        lengths = pc.list_value_length(array).to_numpy()
        if (lengths != length).any():
            index = int(np.argmax(lengths != length))
            raise DataError(
                f"{source}: column '{name}', row {first + index // size} has a"
                f" list of {lengths[index]} values, but input '{column.name}' is"
                f" {column}",
                hint=f"every list must have {length} values",
            )
        shape.append(length)
        size *= length
        array = array.flatten()
    values: np.ndarray = array.to_numpy(zero_copy_only=False)
    return values.reshape(shape)


def _is_list(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_))
