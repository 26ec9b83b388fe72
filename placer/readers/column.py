"""Converts the arrays of a source to the columns that inputs declare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any

import ml_dtypes  # registers bfloat16 with NumPy
import numpy as np

from placer.errors import DataError
from placer.plan.settings.data.columns import Column, Range


def check_shape(
    shape: tuple[int, ...], column: Column, source: str, name: str, row: int | None
) -> None:
    """Raise DataError unless one row of the source has the input's shape.

    Args:
        shape: the shape of one row in the source.
        column: the input.
        source: the text of the source.
        name: the name of the source's column.
        row: the number of the row, or None if all rows have this shape.
    """
    if shape == column.shape:
        return
    where = f"column '{name}'" + (f", row {row}," if row is not None else "")
    has = ", ".join(["n", *map(str, shape)])
    declared = Column(column.name, column.dtype, shape)
    hint = f"declare {column.name}: {declared}"
    limits = column.limits
    if limits and shape == (*column.shape, limits.high + 1):
        hint = (
            f"op '{limits.op}' ({limits.kind}) takes class numbers; convert"
            f" one-hot rows with numpy.argmax({name}, axis=-1)"
        )
    elif prod(shape) == prod(column.shape):
        hint += f", and reshape it in the graph to {list(column.shape)} per row"
    raise DataError(
        f"{source}: {where} has shape [{has}], but input '{column.name}' is {column}",
        hint=hint,
    )


def convert(
    array: np.ndarray, column: Column, source: str, name: str, first: int = 0
) -> np.ndarray:
    """Convert the rows of `array` to the input's dtype.

    Floats become the declared float dtype, and may be NaN. Whole numbers must be in the
    range of the declared integer dtype. Floats without a fraction count as whole
    numbers.

    Args:
        array: rows of the source, of shape [n, ...].
        column: the input.
        source: the text of the source.
        name: the name of the source's column.
        first: the number of the first row of `array` in the source.

    Raises:
        DataError: with the column, the row (from 0) and the value that does not fit.
    """
    target = dtype_of(column, source)
    if array.dtype == target:
        return array
    check_numbers(array, column, source, name)
    with np.errstate(over="ignore", invalid="ignore"):
        # By way of float32, as in exported models: releases of ml_dtypes differ here.
        wide = array.astype("float32") if column.dtype == "bfloat16" else array
        cast = wide.astype(target)
    if dtype_kind(target) == "f":
        is_misfit = np.isinf(cast) & np.isfinite(array)
    else:
        is_misfit = _find_misfits(array, target)
    if is_misfit.any():
        index = np.unravel_index(int(np.argmax(is_misfit)), is_misfit.shape)
        value = array[index]
        raise DataError(
            f"{source}: column '{name}', row {first + int(index[0])}: {value} does not"
            f" fit {target} of input '{column.name}'",
            hint=limits_hint(column)
            or f"the column is {array.dtype}; "
            + conversion_hint(dtype_kind(array.dtype), column),
        )
    return cast


def check_numbers(array: np.ndarray, column: Column, source: str, name: str) -> None:
    """Raise DataError unless an array for an input holds numbers or booleans."""
    if dtype_kind(array.dtype) not in "biuf":
        raise DataError(
            f"{source}: column '{name}' holds {array.dtype}, not numbers",
            hint=f"input '{column.name}' is {column}; convert the column to numbers",
        )


def row_positions(
    source: str, name: str, numbers: Sequence[int], of: str = ""
) -> Callable[[int], str]:
    """Return a function that returns the position of row `numbers[i]` of a column.

    `of` follows the number of the row.
    """
    return lambda i: f"{source}: column '{name}', row {numbers[i]}{of}"


def check_limits(
    array: np.ndarray, column: Column, where: Callable[[int], str]
) -> None:
    """Raise DataError unless all values are within the limits of the input.

    `where(i)` returns the position of row `i` of the array in its source, for messages.
    """
    limits = column.limits
    if limits is None or array.size == 0:
        return
    if array.min() >= limits.low and array.max() <= limits.high:
        return
    is_outside = ~((array >= limits.low) & (array <= limits.high))  # NaN is
    if limits.padding is not None:
        is_outside &= array != limits.padding
        if not is_outside.any():
            return
    index = np.unravel_index(int(np.argmax(is_outside)), is_outside.shape)
    raise DataError(
        f"{where(int(index[0]))}: {array[index]} is outside {limits.low}-{limits.high}",
        hint=limits_hint(column, has_more=bool(array[index] > limits.high)),
    )


def missing_value_error(
    kind: str, name: str, column: Column, where: str, shown: str | None
) -> DataError:
    """Return the error for a missing value, if the spec gives no number for it.

    Args:
        kind: the kind of the source. Its options are under this key of the spec.
        name: the column.
        column: the input that reads it.
        where: the position of the value.
        shown: the text or number that means a missing value; None for no value.
    """
    what = "the value is missing"
    if shown is not None:
        what = f"{shown} means a missing value"
    return DataError(f"{where}: {what}", hint=missing_hint(kind, name, column))


def missing_hint(kind: str, name: str, column: Column | None = None) -> str:
    """Return a hint about the missing values of a column that an input reads.

    It suggests no number for a missing label: all these rows would have the same class.
    """
    if column is not None and column.limits is not None and column.limits.is_label:
        return f"input '{column.name}' is a label: remove the rows without a label"
    return f"give the value to use: {kind}: {{missing: {{{name}: 0}}}}"


def limits_hint(column: Column, *, has_more: bool = False) -> str | None:
    """Return a hint with the limits of an input; None for an input without limits.

    `has_more` is true if a value is above them; for a label, it is a further class.
    """
    if (limits := column.limits) is None:
        return None
    padding = "" if limits.padding is None else f", and {limits.padding} as padding"
    return (
        f"input '{column.name}' goes to op '{limits.op}' ({limits.kind}), which"
        f" takes {limits.low} to {limits.high}{padding}"
        + (f"; {more}" if has_more and (more := more_classes(limits)) else "")
    )


def more_classes(limits: Range, count: int | None = None) -> str:
    """Return a hint to increase the number of classes of a label: to `count`, if given.

    The hint is empty if the number of classes is not the size of a layer.
    """
    if limits.layer is None:
        return ""
    classes = limits.high + 1
    if count is None:
        return f"for more classes, raise the size of op '{limits.layer}', which is {classes}"
    return f"raise the size of op '{limits.layer}' from {classes} to {count}"


def unknown_word_hint(
    kind: str, name: str, column: Column, words: Mapping[str, int]
) -> str:
    """Return a hint about a word that is not in a vocabulary.

    It suggests no number for an unknown label: all these rows would have the same
    class.

    Args:
        kind: the kind of the source. Its options are under this key of the spec.
        name: the column of the source.
        column: the input.
        words: the vocabulary.
    """
    limits = column.limits
    if limits is None or not limits.is_label:
        return f"add the word, or write {kind}: {{unknown: {{{name}: N}}}}"
    count = max(words.values(), default=-1) + 2
    if count <= limits.high + 1:
        return "remove these rows, or add the word to the vocabulary"
    if more := more_classes(limits, count):
        return f"remove these rows, or add the word to the vocabulary and {more}"
    return f"remove these rows: {limits_hint(column)}"


def dtype_of(column: Column, source: str) -> np.dtype[np.generic]:
    """Return the input's dtype; raise DataError for a dtype that no source provides."""
    try:
        dtype = np.dtype(column.dtype)
    except TypeError:
        dtype = np.dtype("V")
    if dtype_kind(dtype) not in "biuf":
        raise DataError(
            f"{source}: input '{column.name}' is {column.dtype}, which no source"
            " provides",
            hint="declare a bool, integer or float input, and convert it in the graph",
        )
    return dtype


def dtype_kind(dtype: np.dtype[np.generic]) -> str:
    """Return NumPy's letter for the kind of a dtype; `f` for bfloat16."""
    return "f" if dtype == ml_dtypes.bfloat16 else dtype.kind


def _find_misfits(array: np.ndarray, target: np.dtype[np.generic]) -> np.ndarray:
    """Return a mask of values that are not whole numbers in the range of `target`."""
    if target.kind == "b":
        return np.asarray((array != 0) & (array != 1))
    limits = _limits(target)
    if dtype_kind(array.dtype) == "f":
        # Compare with the power of two above the maximum: it is exact in a float, but
        # the largest int64 is not.
        low, above = float(limits.min), float(limits.max // 2 + 1) * 2.0
        wide = array.astype(np.float64)
        return np.asarray((wide < low) | (wide >= above) | (np.floor(wide) != wide))
    return np.asarray((array < limits.min) | (array > limits.max))


@cache
def _limits(dtype: np.dtype[np.generic]) -> np.iinfo[Any]:
    return np.iinfo(str(dtype))  # takes longer than to check a hundred values


def conversion_hint(kind: str, column: Column) -> str:
    """Return the type to declare for values that do not fit an input."""
    if kind != "f":
        return f"input '{column.name}' is {column}: declare a wider dtype"
    wide = "float64" if column.dtype == "float32" else "float32"
    declared = Column(column.name, wide, column.shape)
    also = ", and write precision: float64" if wide == "float64" else ""
    return f"declare {column.name}: {declared}{also}"
