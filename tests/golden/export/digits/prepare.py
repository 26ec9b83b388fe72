"""digits: from columns of rows to the arguments of the model. Exported by placer; works without placer.

    arguments = prepare(columns)
    outputs = model(params, **arguments)

It needs only NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def prepare(columns: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the arguments of `model` besides its parameters.

    Args:
        columns: a list or an array for each column, with a value for each row:
            "image".

    Raises:
        ValueError: if a column is missing, or a value does not fit.
    """
    arguments = {
        "image": stack_columns(columns, ["image"], "float32", (64,)),
    }
    return check_rows(arguments)


def check_rows(arguments: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the inputs; raise ValueError if their numbers of rows differ."""
    sizes = [len(array) for array in arguments.values()]
    if len({*sizes}) > 1:
        listed = ", ".join(map(str, sizes))
        raise ValueError(f"the inputs have different numbers of rows: {listed}")
    return arguments


def check_names(columns: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise ValueError unless these columns exist and are lists of cells."""
    for name in names:
        if name not in columns:
            raise ValueError(f"there is no column '{name}'")
        if isinstance(columns[name], str | bytes):
            raise ValueError(f"column '{name}' is one text, not a list of cells")


def to_dtype(name: str, array: np.ndarray, dtype: str) -> np.ndarray:
    """Return an array in another dtype; raise ValueError if a value does not fit.

    NumPy has no bfloat16: the array is then float32, and the model rounds it.
    """
    if array.dtype.kind not in "biuf":
        raise ValueError(f"column '{name}' holds {array.dtype}, not numbers")
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype("float32" if dtype == "bfloat16" else dtype)
    if cast.dtype.kind == "f":
        # From this number on, the nearest bfloat16 is infinite.
        end = 511 * 2.0**119 if dtype == "bfloat16" else np.inf
        is_misfit = (np.abs(cast) >= end) & np.isfinite(array)
    else:
        is_misfit = (cast.astype(array.dtype) != array) | ((cast < 0) != (array < 0))
    if is_misfit.any():
        at = np.unravel_index(np.argmax(is_misfit), is_misfit.shape)
        message = f"column '{name}', row {at[0]}: {array[at]} does not fit {dtype}"
        raise ValueError(message)
    return cast


def to_array(values: Any) -> np.ndarray:
    """Return an array of a number, a list or an array.

    NumPy would round a list with numbers beyond int64 to floats. Here they become
    uint64.
    """
    array = np.asarray(values)
    if array.dtype == np.float64 and not isinstance(values, np.ndarray | np.generic):
        objects = np.asarray(values, object)
        if all(isinstance(x, int) and 0 <= x < 1 << 64 for x in objects.flat):
            return objects.astype(np.uint64)
    return array


def join(names: Sequence[str], arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return columns with one value for each row as one array, [rows, columns]."""
    sizes = [len(array) for array in arrays]
    if len({*sizes}) > 1:
        listed = ", ".join(map(str, sizes))
        raise ValueError(f"the columns {', '.join(names)} have {listed} rows")
    return np.stack(arrays, axis=-1)


def reshape_rows(
    names: Sequence[str], array: np.ndarray, shape: tuple[int, ...]
) -> np.ndarray:
    """Return the values of columns, [rows, columns], as rows of another shape."""
    if array.size != len(array) * int(np.prod(shape)):
        raise ValueError(f"a row of shape {shape} does not have {len(names)} columns")
    return array.reshape(len(array), *shape)


def check_limits(
    names: Sequence[str], array: np.ndarray, limits: tuple[int, ...] | None
) -> np.ndarray:
    """Return the array; raise ValueError if a value is outside the limits."""
    if limits is not None and array.size:
        low, high, *others = limits
        is_outside = ~((array >= low) & (array <= high)) & ~np.isin(array, others)
        if is_outside.any():
            at = np.unravel_index(np.argmax(is_outside), is_outside.shape)
            where = f"column {', '.join(names)}, row {at[0]}"
            raise ValueError(f"{where}: {array[at]} is outside {low}-{high}")
    return array


def stack_columns(
    columns: Mapping[str, Any],
    names: Sequence[str],
    dtype: str,
    shape: tuple[int, ...],
    limits: tuple[int, ...] | None = None,
) -> np.ndarray:
    """Return an input from arrays, or from one column for each value of its rows.

    Args:
        columns: the columns by name.
        names: the columns that the input reads, in C order.
        dtype: the dtype of the input.
        shape: the shape of one of its rows.
        limits: the minimum, the maximum and other valid values, if there are limits.

    Raises:
        ValueError: if a column is missing or has another shape, or a value does not
            fit.
    """
    check_names(columns, names)
    arrays = [to_dtype(name, to_array(columns[name]), dtype) for name in names]
    array = arrays[0] if len(arrays) == 1 else join(names, arrays)
    if len(arrays) > 1 or array.shape[1:] == ():
        array = reshape_rows(names, array, shape)
    if array.shape[1:] != shape:
        raise ValueError(
            f"column '{names[0]}' has rows of shape {array.shape[1:]}, not {shape}"
        )
    return check_limits(names, array, limits)
