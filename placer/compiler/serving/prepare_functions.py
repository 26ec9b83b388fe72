"""Functions that prepare.py of an exported model contains: from columns to arrays.

They accept and reject the same values as the readers of placer in training. They need
only NumPy, and take rows as a service receives them: lists, arrays, numbers and words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from math import isfinite
from typing import Any

import numpy as np

from placer.plan.settings.data.missing import MISSING_WORDS
from placer.readers.scalars import is_absent, is_marker, scalar_of
from placer.readers.whole_numbers import to_array
from placer.readers.words import word_of

BOOLS = {
    "0": 0, "1": 1,
    "false": 0, "False": 0, "FALSE": 0,
    "true": 1, "True": 1, "TRUE": 1,
}  # fmt: skip


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


def parse_columns(
    columns: Mapping[str, Any],
    names: Sequence[str],
    dtype: str,
    shape: tuple[int, ...],
    limits: tuple[int, ...] | None = None,
    *,
    words: Mapping[str, Mapping[str, int]] | None = None,
    unknown: Mapping[str, int] | None = None,
    missing: Mapping[str, float] | None = None,
    markers: Mapping[str, Sequence[str | float]] | None = None,
) -> np.ndarray:
    """Return an input from columns of cells: texts or numbers, as in a CSV file.

    Args:
        columns: the columns by name, each with one cell for each row. A single column
            may have lists of the input's shape instead; then words, unknown, missing
            and markers do not apply.
        names: the columns that the input reads, one for each value of a row, in C
            order.
        dtype: the dtype of the input.
        shape: the shape of one of its rows.
        limits: the minimum, the maximum and other valid values, if there are limits.
        words: the numbers of the words of a column. Like the next arguments, it is
            keyed by the name of a column or by a glob; the first match applies.
        unknown: the number of any other word.
        missing: the number of a cell that is None, NaN, NA or empty.
        markers: more texts and numbers that mean a missing value.

    Raises:
        ValueError: with the row, if a column is missing or a cell does not fit.
    """
    check_names(columns, names)
    if shape and len(names) == 1 and has_lists(columns[names[0]]):
        return stack_columns(columns, names, dtype, shape, limits)
    parsed: list[np.ndarray] = []
    for name in names:
        vocabulary = first_match(words or {}, name)
        other = first_match(unknown or {}, name)
        filled = first_match(missing or {}, name)
        marked = first_match(markers or {}, name) or ()
        numbers: list[float] = []
        for row, cell in enumerate(columns[name]):
            try:
                if vocabulary is not None:
                    numbers.append(word_number(cell, vocabulary, other, marked))
                else:
                    numbers.append(cell_number(cell, filled, dtype, marked))
            except (TypeError, ValueError, OverflowError) as error:
                raise ValueError(f"column '{name}', row {row}: {error}") from None
        parsed.append(to_dtype(name, number_list(name, numbers), dtype))
    array = reshape_rows(names, join(names, parsed), shape)
    return check_limits(names, array, limits)


def has_lists(cells: Any) -> bool:
    """Return True if the first cell of a column is a list or an array."""
    first = next(iter(cells), None)
    return isinstance(first, list | tuple) or bool(getattr(first, "ndim", None))


def with_numbers(
    columns: Mapping[str, Any], names: Sequence[str], dtype: str
) -> dict[str, Any]:
    """Return the columns; convert texts and decimals of the named ones to numbers."""
    parsed = {**columns}
    for name in names:
        cells = columns.get(name, ())
        array = to_array(cells)
        if array.ndim == 1 and array.dtype.kind in "OSU" and not isinstance(cells, str):
            numbers = []
            for row, cell in enumerate(cells):
                try:
                    numbers.append(cell_number(cell, None, dtype))
                except (TypeError, ValueError, OverflowError) as error:
                    message = f"column '{name}', row {row}: {error}"
                    raise ValueError(message) from None
            parsed[name] = number_list(name, numbers)
    return parsed


def number_list(name: str, numbers: Sequence[float]) -> np.ndarray:
    """Return numbers as an array; whole numbers stay exact."""
    is_whole = all(isinstance(number, int) for number in numbers)
    is_large = is_whole and max(numbers, default=0) >= 2**63
    whole = np.uint64 if is_large else np.int64
    try:
        return np.array(numbers, whole if is_whole else np.float64)
    except OverflowError:
        raise ValueError(f"column '{name}': a number is too large") from None


def check_rows(arguments: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the inputs; raise ValueError if their numbers of rows differ."""
    sizes = [len(array) for array in arguments.values()]
    if len({*sizes}) > 1:
        listed = ", ".join(map(str, sizes))
        raise ValueError(f"the inputs have different numbers of rows: {listed}")
    return arguments


def join(names: Sequence[str], arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return columns with one value for each row as one array, [rows, columns]."""
    sizes = [len(array) for array in arrays]
    if len({*sizes}) > 1:
        listed = ", ".join(map(str, sizes))
        raise ValueError(f"the columns {', '.join(names)} have {listed} rows")
    return np.stack(arrays, axis=-1)


def check_names(columns: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise ValueError unless these columns exist and are lists of cells."""
    for name in names:
        if name not in columns:
            raise ValueError(f"there is no column '{name}'")
        if isinstance(columns[name], str | bytes):
            raise ValueError(f"column '{name}' is one text, not a list of cells")


def first_match(patterns: Mapping[str, Any], name: str) -> Any:
    """Return the value of the first name or glob that matches a column, or None."""
    for pattern, value in patterns.items():
        if name == pattern or fnmatchcase(name, pattern):
            return value
    return None


def reshape_rows(
    names: Sequence[str], array: np.ndarray, shape: tuple[int, ...]
) -> np.ndarray:
    """Return the values of columns, [rows, columns], as rows of another shape."""
    if array.size != len(array) * int(np.prod(shape)):
        raise ValueError(f"a row of shape {shape} does not have {len(names)} columns")
    return array.reshape(len(array), *shape)


def word_number(
    cell: Any,
    words: Mapping[str, int],
    unknown: int | None,
    markers: Sequence[str | float] = (),
) -> int:
    """Return the number of a word."""
    text = word_of(cell, words)
    if text in markers and text not in words:
        text = ""
    number = words.get(text, unknown)
    if number is None:
        raise ValueError(f"{text!r} is not in the vocabulary")
    return number


def cell_number(
    cell: Any, missing: float | None, dtype: str, markers: Sequence[str | float] = ()
) -> float:
    """Return the number in a cell; a whole number is an int for an integer dtype."""
    text = as_cell(cell)
    if is_missing(cell, markers):
        if missing is None:
            raise ValueError("the value is missing")
        text = missing
    if dtype == "bool" and isinstance(text, str | Decimal):
        if (word := str(text)) not in BOOLS:
            raise ValueError(f"{word!r} is not 0, 1, true or false")
        return BOOLS[word]
    if isinstance(text, str):
        return whole(text) if "int" in dtype else finite(text)
    if isinstance(text, np.generic):
        raise ValueError(f"{text!r} is not a number")
    if "int" not in dtype:
        return float(text)
    is_whole = isinstance(text, int) or float(text).is_integer()
    return int(text) if is_whole else float(text)


def as_cell(value: Any) -> Any:
    """Return a text without surrounding blanks, a NumPy number as a Python number.

    Bytes are decoded. Other values are unchanged.
    """
    if isinstance(value, str | bytes):
        return (value.decode() if isinstance(value, bytes) else value).strip()
    # The item of a datetime64 may be a whole number.
    value = scalar_of(value)
    is_number = isinstance(value, np.generic) and value.dtype.kind in "biuf"
    return value.item() if is_number else value


def is_missing(cell: Any, markers: Sequence[str | float] = ()) -> bool:
    """Return True if a cell means a missing value.

    Missing are None, NaN, NaT, NA, the usual texts, and the markers. A marker that is a
    number also matches its texts.
    """
    if is_absent(cell):
        return True
    text = str(cell) if isinstance(cell, Decimal) else as_cell(cell)
    if not isinstance(text, str):
        numbers = [each for each in markers if not isinstance(each, str)]
        return bool(numbers) and is_marker(scalar_of(cell), numbers)
    if text.lower() in MISSING_WORDS or text in markers:
        return True
    try:
        return bool(markers) and finite(text) in markers
    except ValueError:
        return False


def whole(text: str) -> int:
    """Return the whole number in a text; raise ValueError for another text."""
    finite(text)
    try:
        exact = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text!r} is not a number") from None
    if exact != int(exact):
        raise ValueError(f"{text!r} is not a whole number")
    return int(exact)


def finite(text: str) -> float:
    """Return the finite number in a text; raise ValueError for another text."""
    if "_" in text or not text.isascii():
        raise ValueError(f"{text!r} is not a number")
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text!r} is not a finite number")
    return number


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
