"""Reads the cells of a column as text, numbers or dates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from placer.command.starter.table import Table
from placer.errors import DataError
from placer.plan.settings.data.missing import MISSING
from placer.readers.arrow_text import is_text, read_cells, read_text
from placer.readers.cell_numbers import cast_floats
from placer.readers.features.times import parse_times, split_times
from placer.readers.parquet import can_be_words
from placer.readers.times import DAY

_NO_WORDS = frozenset(text for text in MISSING if text.lower() not in ("none", "-"))
"""Cells that do not count as words. `none` and `-` are missing numbers, but they are
words."""


@dataclass(frozen=True)
class Cells:
    """The values of a column.

    Attributes:
        name: the name of the column.
        position: returns the position of a row in the file.
        text: the values as text, "" if missing; None if the column has no text.
        numbers: the values as float64, NaN if missing; None if a value is not a number.
        days: the values as days since 1970-01-01, float64, NaN if missing; None if a
            value is not a date.
        kind: the kind of the values, if they are neither numbers nor words.
        is_text: True if the file stores the values as text.
    """

    name: str
    position: Callable[[int], str]
    text: pa.StringArray | None
    numbers: np.ndarray | None = None
    days: np.ndarray | None = None
    kind: str | None = None
    is_text: bool = True

    @cached_property
    def words(self) -> Counter[str]:
        """The number of rows with each text."""
        pairs = pc.value_counts(self.text).to_pylist()
        words = Counter({pair["values"]: pair["counts"] for pair in pairs})
        del words[""]
        return words

    @cached_property
    def is_missing(self) -> np.ndarray:
        """A mask of the rows without a value."""
        is_missing = np.zeros(0, np.bool_)
        if self.numbers is not None:
            is_missing = np.isnan(self.numbers)
        elif self.text is not None:
            is_missing = pc.equal(self.text, "").to_numpy(zero_copy_only=False)
        return is_missing

    @property
    def missing(self) -> int:
        """The number of rows without a value."""
        return int(self.is_missing.sum())

    @cached_property
    def distinct_numbers(self) -> int:
        """The number of different numbers in a column of numbers."""
        assert self.numbers is not None
        distinct = np.unique(self.numbers[~self.is_missing])
        if self.text is None or (np.abs(distinct) < 2**53).all():
            return len(distinct)
        # Several large numbers can round to the same float.
        return len({Decimal(text) for text in self.words})

    def without(self, markers: frozenset[str]) -> Cells:
        """Return the cells with `markers` as missing values."""
        return _parse(self.name, self.position, self.text, markers)


def describe_cells(table: Table, name: str) -> Cells:
    """Return the values of a column of a table."""
    array = table.columns[name]
    type_ = array.type
    if _is_parsed(type_):
        cells = _parse(name, table.position, read_cells(array, table.position))
        has_text = is_text(type_) or pa.types.is_dictionary(type_)
        return replace(cells, is_text=has_text)
    kind: str | None = f"it holds {type_}, but only numbers and words can be inputs"
    text = numbers = days = None
    if pa.types.is_boolean(type_):
        kind, text = None, read_text(array)
        numbers = _to_float(array.cast(pa.int8()))
    elif pa.types.is_floating(type_):
        numbers = _to_float(array)
        text = _text_of_whole(numbers)
        kind = _infinite(numbers)
    elif pa.types.is_null(type_):
        kind = "all its values are missing"
    elif pa.types.is_temporal(type_):
        kind = (
            f"it holds times ({type_}): write numbers to the file, such as the "
            "month or the days since a date"
        )
        if pa.types.is_date(type_) or pa.types.is_timestamp(type_):
            whole, nanoseconds = split_times(array)
            days = whole + nanoseconds / DAY
            days[array.is_null().to_numpy(zero_copy_only=False)] = np.nan
    return Cells(name, table.position, text, numbers, days, kind)


def _is_parsed(type_: pa.DataType) -> bool:
    """Return True if a column is read as text, such as a column of a CSV file."""
    if pa.types.is_dictionary(type_):
        return can_be_words(type_)
    is_number = pa.types.is_decimal(type_) or pa.types.is_integer(type_)
    return is_text(type_) or bool(is_number)


def _parse(
    name: str,
    position: Callable[[int], str],
    cells: pa.StringArray,
    markers: frozenset[str] = frozenset(),
) -> Cells:
    """Return texts as numbers or dates, if all texts can be converted."""
    text = _without(cells, MISSING | markers)
    if (numbers := _parse_numbers(text)) is not None:
        return Cells(name, position, text, numbers)
    words = _without(cells, _NO_WORDS | markers)
    return Cells(name, position, words, days=_parse_days(text))


def _without(text: pa.StringArray, missing: frozenset[str]) -> pa.StringArray:
    return pc.if_else(pc.is_in(text, pa.array(sorted(missing))), "", text)


def is_number(word: str) -> bool:
    """Return True if a word is a finite number."""
    return _parse_numbers(pa.array([word])) is not None


def _parse_numbers(text: pa.StringArray) -> np.ndarray | None:
    """Return texts as float64, with NaN for ""; None if one is not a float32 number."""
    is_present = pc.not_equal(text, "")
    present = cast_floats(text.filter(is_present))
    if present is None or not len(present):
        return None
    if np.isnan(present).any() or _infinite(present):
        return None
    numbers = np.full(len(text), np.nan)
    numbers[is_present.to_numpy(zero_copy_only=False)] = present
    return numbers


def _parse_days(text: pa.StringArray) -> np.ndarray | None:
    """Return texts as days since 1970-01-01, with NaN for ""; None if one is not a date."""
    encoded = text.dictionary_encode()
    is_present = pc.not_equal(encoded.dictionary, "")
    try:
        whole, nanoseconds = parse_times(encoded.dictionary.filter(is_present), str)
    except DataError:
        return None
    days = np.full(len(encoded.dictionary), np.nan)
    days[is_present.to_numpy(zero_copy_only=False)] = whole + nanoseconds / DAY
    rows: np.ndarray = days[encoded.indices.to_numpy()]
    return rows


def _to_float(array: pa.Array) -> np.ndarray:
    numbers: np.ndarray = array.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return numbers


def _infinite(numbers: np.ndarray) -> str | None:
    limit = np.finfo(np.float32).max
    if (np.abs(numbers[~np.isnan(numbers)]) > limit).any():
        return "some of its numbers are infinite or too large for float32"
    return None


def _text_of_whole(numbers: np.ndarray) -> pa.StringArray | None:
    """Return whole floats, such as ids with gaps, as text; None if a float is not whole."""
    is_nan = np.isnan(numbers)
    if not are_exact(numbers[~is_nan]):
        return None
    whole = pa.array(np.where(is_nan, 0, numbers).astype(np.int64))
    return pc.if_else(pa.array(is_nan), "", whole.cast(pa.string()))


def are_exact(numbers: np.ndarray) -> bool:
    """Return True if all numbers are whole and small enough to be exact floats."""
    return bool(((np.abs(numbers) < 2**53) & (numbers == np.floor(numbers))).all())
