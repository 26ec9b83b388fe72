"""Columns as the inputs declare them, and the conversion of a source's arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import ml_dtypes  # numpy knows bfloat16 by it
import numpy as np

from placer.errors import DataError


@dataclass(frozen=True, slots=True)
class Limits:
    """The least and the greatest value that an input may have, and who says so."""

    low: int
    high: int
    source: str


@dataclass(frozen=True, slots=True)
class Column:
    """An input that a source feeds: its name, dtype, one row's shape, and its limits."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    limits: Limits | None = None

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(['batch', *map(str, self.shape)])}]"


def check_shape(
    found: tuple[int, ...], column: Column, source: str, named: str, row: int | None
) -> None:
    """DataError unless one row of the source has the input's shape."""
    if found == column.shape:
        return
    where = f"column '{named}'" + (f", row {row}," if row is not None else "")
    has = ", ".join(["n", *map(str, found)])
    declared = Column(column.name, column.dtype, found)
    hint = f"declare {column.name}: {declared}"
    if prod(found) == prod(column.shape):
        hint += f", and reshape it in the graph to {list(column.shape)} per row"
    raise DataError(
        f"{source}: {where} has shape [{has}], input '{column.name}' is {column}",
        hint=hint,
    )


def convert(
    array: np.ndarray, column: Column, source: str, named: str, first: int = 0
) -> np.ndarray:
    """The rows of `array` in the input's dtype; `first` is the number of its first row.

    Floats become the declared float, NaN included. Whole numbers are checked against
    the range of the declared integer; floats that are whole numbers are taken for
    integers. DataError names the column, the row (from 0) and the value.
    """
    target = dtype_of(column, source)
    if array.dtype == target:
        return array
    if kind_of(array.dtype) not in "biuf":
        raise DataError(
            f"{source}: column '{named}' holds {array.dtype}, not numbers",
            hint=f"input '{column.name}' is {column}",
        )
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(target)
    if kind_of(target) == "f":
        bad = np.isinf(cast) & np.isfinite(array)
    else:
        bad = _misfits(array, target)
    if bad.any():
        at = np.unravel_index(int(np.argmax(bad)), bad.shape)
        value = array[at]
        raise DataError(
            f"{source}: column '{named}', row {first + int(at[0])}: {value} does not"
            f" fit {target} of input '{column.name}'",
            hint=_remedy(array, column),
        )
    return cast


def check_limits(
    array: np.ndarray, column: Column, where: Callable[[int], str]
) -> None:
    """DataError unless all values are within the limits of the input.

    `where(i)` says where row `i` of the array comes from.
    """
    limits = column.limits
    if limits is None or array.size == 0:
        return
    if array.min() >= limits.low and array.max() <= limits.high:
        return
    bad = (array < limits.low) | (array > limits.high)
    at = np.unravel_index(int(np.argmax(bad)), bad.shape)
    raise DataError(
        f"{where(int(at[0]))}: {array[at]} is outside {limits.low}-{limits.high}",
        hint=f"input '{column.name}' goes to {limits.source}, which takes"
        f" {limits.low} to {limits.high}",
    )


def dtype_of(column: Column, source: str) -> np.dtype[np.generic]:
    """The input's dtype; DataError for one that no source gives."""
    try:
        dtype = np.dtype(column.dtype)
    except TypeError:
        dtype = np.dtype("V")
    if kind_of(dtype) not in "biuf":
        raise DataError(
            f"{source}: input '{column.name}' is {column.dtype}, which no source gives",
            hint="declare a bool, integer or float input and convert it in the graph",
        )
    return dtype


def kind_of(dtype: np.dtype[np.generic]) -> str:
    """numpy's letter for the kind of a dtype; bfloat16 is a float."""
    return "f" if dtype == ml_dtypes.bfloat16 else dtype.kind


def _misfits(array: np.ndarray, target: np.dtype[np.generic]) -> np.ndarray:
    """Where a value is no whole number within the range of an integer dtype."""
    if target.kind == "b":
        return np.asarray((array != 0) & (array != 1))
    limits = np.iinfo(str(target))
    if kind_of(array.dtype) == "f":
        # Every power of two is exact in a float; the largest int64 is not.
        low, above = float(limits.min), float(limits.max // 2 + 1) * 2.0
        wide = array.astype(np.float64)
        inside = (wide >= low) & (wide < above) & (np.floor(wide) == wide)
        return np.asarray(~inside)
    if array.dtype.kind == "b":
        return np.zeros(array.shape, bool)
    return np.asarray((array < limits.min) | (array > limits.max))


def _remedy(array: np.ndarray, column: Column) -> str:
    if kind_of(array.dtype) != "f":
        return f"the column is {array.dtype}; a wider dtype holds it"
    wide = "float32" if kind_of(np.dtype(column.dtype)) != "f" else "float64"
    declared = Column(column.name, wide, column.shape)
    return f"the column is {array.dtype}; declare {column.name}: {declared}"
