"""Parses the cells of a text column as numbers of an input's dtype."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from placer.errors import DataError, nearest
from placer.plan.settings.data.columns import Column
from placer.plan.settings.data.missing import MISSING, NO_MARKERS, Markers
from placer.plan.settings.data.sources import SourceError
from placer.readers.arrow_text import trim
from placer.readers.column import (
    check_limits,
    conversion_hint,
    dtype_kind,
    limits_hint,
    missing_hint,
    unknown_word_hint,
)
from placer.readers.scalars import nearest_numbers
from placer.readers.times import ISO_TIME
from placer.readers.words import word_of

_BOOLS = {"0": 0, "1": 1} | {
    word: int(word[0] in "tT")
    for word in ("false", "False", "FALSE", "true", "True", "TRUE")
}
_MOST_SHOWN = 40
"""The number of characters of a cell that a message shows."""


@dataclass(frozen=True, slots=True)
class CellParser:
    """Parses the cells of one column of a file as numbers of an input.

    Attributes:
        kind: the kind of the source. Its options are under this key of the spec.
        name: the name of the file's column.
        column: the input.
        dtype: the input's dtype.
        words: the numbers of the words of the column's vocabulary, if it has one.
        unknown: the number of any other word, if given.
        missing: the number of a cell without a value, if given.
        markers: the values that the spec lists as missing values of the column.
    """

    kind: str
    name: str
    column: Column
    dtype: np.dtype[np.generic]
    words: Mapping[str, int] | None
    unknown: int | None
    missing: float | None
    markers: Markers = NO_MARKERS

    def parse(self, cells: pa.StringArray, where: Callable[[int], str]) -> np.ndarray:
        """Parse the cells of some rows.

        Args:
            cells: the texts of the cells.
            where: returns the position of a cell in the source, for messages.

        Returns:
            An array of shape [len(cells)] and of the input's dtype.

        Raises:
            DataError: with the position, the text and the expected type.
        """
        numbers = self._parse_at_once(cells)
        if numbers is None:
            numbers = self._parse_one_by_one(cells, where)
        check_limits(numbers, self.column, where)
        return numbers

    def _parse_one_by_one(
        self, cells: pa.StringArray, where: Callable[[int], str]
    ) -> np.ndarray:
        """Parse cells one by one, so that an error names the cell."""
        numbers = np.empty(len(cells), self.dtype)
        for i, cell in enumerate(cells.to_pylist()):
            numbers[i] = self._parse_at(cell.strip(), i, where)
        return numbers

    def _parse_at(
        self, text: str, i: int, where: Callable[[int], str]
    ) -> float | Decimal:
        try:
            return self._parse_cell(text)
        except DataError as misfit:
            message = f"{where(i)}: {misfit.message}"
            hint = misfit.hint or f"input '{self.column.name}' is {self.column}"
            if self.words is not None:
                keys = self.kind, "vocabulary", self.name
                raise SourceError(keys, message, hint) from None
            raise DataError(message, hint=hint) from None

    def parse_value(self, value: Any, where: Callable[[int], str]) -> np.generic:
        """Parse a Python value: a word of the vocabulary, or a number as text.

        The limits of the input are not checked. Raises DataError as `parse` does, and
        if the value is not a single word. `where(0)` is the position of the value.
        """
        try:
            text = word_of(value, self.words or ())
        except ValueError as error:
            hint = None
            if not isinstance(error, UnicodeDecodeError):
                hint = "a vocabulary needs a column with one word in each row"
            raise DataError(f"{where(0)}: {error}", hint=hint) from None
        number = self._parse_at(text, 0, where)
        parsed: np.generic = np.array([number]).astype(self.dtype)[0]
        return parsed

    def _parse_at_once(self, cells: pa.StringArray) -> np.ndarray | None:
        """Parse all cells at once; return None if one of them may be wrong."""
        if self.words is not None:
            array = _look_up(cells, self._word_or_none)
        else:
            cells = trim(cells)
            if self.missing is not None:
                whole = int(self.missing)
                filled = str(whole if whole == self.missing else self.missing)
                cells = pc.if_else(are_missing(cells, self.markers), filled, cells)
            elif self.markers and pc.any(are_missing(cells, self.markers)).as_py():
                return None
            kind = dtype_kind(self.dtype)
            if kind == "b":
                array = _look_up(cells, _BOOLS.get)
            else:
                array = cast_floats(cells) if kind == "f" else cast_whole(cells)
        if array is None:
            return None
        low, high = _bounds(self.dtype)
        # A comparison with NaN is false, so a NaN does not fit.
        fits = bool(((array >= low) & (array <= high)).all())
        return array.astype(self.dtype) if fits else None

    def _parse_cell(self, text: str) -> float | Decimal:
        kind = dtype_kind(self.dtype)
        if self.words is not None:
            number: float | Decimal = self._word_number(text, self.words)
        elif self._is_missing(text):
            number = self._missing_number(text)
        elif kind == "b":
            if text not in _BOOLS:
                raise DataError(f"{quote(text)} is not 0, 1, true or false")
            number = _BOOLS[text]
        else:
            is_float = kind == "f"
            number = parse_number(text, is_float, self.kind, self.name, self.column)
        shown = quote(text)
        if self.words is None and self._is_missing(text):
            shown = f"{number}, given by 'missing',"
        low, high = _bounds(self.dtype)
        if kind != "f" and number != int(number):
            hint = limits_hint(self.column) or conversion_hint("f", self.column)
            raise DataError(f"{shown} is not a whole number", hint=hint)
        if not low <= number <= high:
            hint = limits_hint(self.column) or conversion_hint(kind, self.column)
            raise DataError(f"{shown} does not fit {self.dtype}", hint=hint)
        return number if kind == "f" else int(number)

    def _word_number(self, text: str, words: Mapping[str, int]) -> int:
        number = self._word_or_none(text)
        if number is None:
            near = nearest(text, words)
            hint = unknown_word_hint(self.kind, self.name, self.column, words)
            hint += f"; did you mean '{near}'?" if near else ""
            raise DataError(f"{quote(text)} is not in the vocabulary", hint=hint)
        return number

    def _word_or_none(self, text: str) -> int | None:
        """Return the number of a word; missing values default to the empty word."""
        words = self.words
        assert words is not None
        if text in self.markers.texts and text not in words:
            text = ""
        return words.get(text, self.unknown)

    def _is_missing(self, text: str) -> bool:
        return text in MISSING or self.markers.marks_missing(text)

    def _missing_number(self, text: str) -> float:
        if self.missing is None:
            empty = (
                "the cell is empty" if self.kind == "csv" else "the value is missing"
            )
            message = f"{quote(text)} is not a number" if text else empty
            if text and text not in MISSING:
                message = f"{quote(text)} means a missing value"
            hint = missing_hint(self.kind, self.name, self.column)
            raise DataError(message, hint=hint)
        return self.missing


def add_cells(cells: pa.StringArray, checksum: int) -> int:
    """Return the digest of more cells, continuing `checksum`.

    Blanks around cells do not count. The digest does not depend on the size of the
    batches.
    """
    trimmed = trim(cells)
    one_list = pa.ListArray.from_arrays([0, len(cells)], trimmed)
    joined = pc.binary_join(one_list, "\0")[0].as_buffer()
    return zlib.crc32(b"\0", zlib.crc32(joined, checksum))


def are_missing(cells: pa.StringArray, markers: Markers) -> pa.BooleanArray:
    """Return which stripped cells mean a missing number or date."""
    mask = pc.is_in(cells, _missing_cells(markers.texts))
    if not markers.numbers:
        return mask
    numbers = cast_floats(pc.if_else(mask, "nan", cells))
    if numbers is None:  # some cell is not a number, such as a word or a date
        encoded = cells.dictionary_encode()
        means = np.array(
            [*map(markers.marks_missing, encoded.dictionary.to_pylist())], np.bool_
        )
        marked = means[encoded.indices.to_numpy()]
    else:
        marked = np.isin(numbers, [*markers.numbers])
    return pc.or_(mask, pa.array(marked))


def have_numbers(array: pa.Array, markers: Markers) -> pa.BooleanArray:
    """Return which numbers of a column mean a missing value.

    Nulls and booleans do not. Floats are compared in their own dtype, so -999.1 means
    the nearest float32.
    """
    if pa.types.is_boolean(array.type):
        return pa.array(np.zeros(len(array), np.bool_))
    if not pa.types.is_floating(array.type):
        array = array.cast(pa.float64(), safe=False)
    floats = array.fill_null(pa.scalar(math.nan).cast(array.type)).to_numpy()
    return pa.array(np.isin(floats, nearest_numbers(markers.numbers, floats.dtype)))


@cache
def _missing_cells(texts: frozenset[str]) -> pa.StringArray:
    return pa.array(sorted(MISSING | texts))


def _look_up(
    cells: pa.StringArray, number_of: Callable[[str], int | None]
) -> np.ndarray | None:
    """Return the numbers of words, int64[len(cells)]; None if a word has no number."""
    encoded = cells.dictionary_encode()
    numbers = [number_of(w.strip()) for w in encoded.dictionary.to_pylist()]
    try:
        # A word without a number is None, which raises TypeError in NumPy.
        result: np.ndarray = np.array(numbers, np.int64)[encoded.indices.to_numpy()]
    except (TypeError, OverflowError):
        return None
    return result


def cast_floats(cells: pa.StringArray) -> np.ndarray | None:
    """Return numbers as float64; None if a cell is not a number."""
    return _cast(cells, pa.float64())


def cast_whole(cells: pa.StringArray) -> np.ndarray | None:
    """Return whole numbers as int64 or uint64.

    None means that a cell may be invalid, or that the cells must be parsed one by one.
    """
    # pyarrow would parse 0x10 as an integer.
    if pc.any(pc.match_substring(cells, "x", ignore_case=True)).as_py():
        return None
    numbers = _cast(cells, pa.int64())
    if numbers is None:  # pandas writes 3.0 if a value of the column is missing
        cells = pc.replace_substring_regex(cells, r"^([+-]?[0-9]+)\.0*$", r"\1")
        numbers = _cast(cells, pa.int64())
    return _cast(cells, pa.uint64()) if numbers is None else numbers


def _cast(cells: pa.StringArray, type_: pa.DataType) -> np.ndarray | None:
    try:
        numbers: np.ndarray = cells.cast(type_).to_numpy()
    except pa.ArrowInvalid:
        return None
    return numbers


def parse_number(
    text: str, is_float: bool, kind: str, name: str, column: Column | None = None
) -> float | Decimal:
    """Return the finite number in a cell, a float or the exact number.

    Args:
        kind: the kind of the source, for the hint.
        name: the column, for the hint.
        column: the input that reads the column; None for a feature.

    Raises:
        DataError: if the text is not a finite number.
    """
    as_missing = _as_missing_hint(text, kind, name, column)
    # `float` accepts 1_000 and digits of other scripts, which files do not use for
    # numbers.
    if "_" not in text and text.isascii():
        with suppress(ValueError, InvalidOperation):
            number = float(text)
            if not np.isfinite(number):
                message = f"{quote(text)} is not a finite number"
                raise DataError(message, hint=as_missing)
            return number if is_float else Decimal(text)
    if "\0" in text:
        message = f"{quote(text)} has a NUL byte, so it is not a number"
        raise DataError(message, hint="save the text as UTF-8, without NUL bytes")
    hashed = f"features: {{NAME: {{hash: {name}}}}}"
    words = f"a column of words needs {hashed}"
    if column is not None:
        words = (
            f"a column of words needs {kind}: {{vocabulary: {{{name}: [WORD, …]}}}}; with"
            f" too many words to list, write {hashed}"
        )
    hint = f"{as_missing}; {words}" if as_missing else words
    if ISO_TIME.fullmatch(text):
        hint = f"compute numbers from a date: features: {{NAME: {{days: {name}}}}}"
    elif _OTHER_DATE.fullmatch(text):
        hint = (
            "write dates as 2024-05-01 in the file, and compute numbers from"
            f" them: features: {{NAME: {{days: {name}}}}}"
        )
    elif _FORMATTED.fullmatch(text):
        hint = (
            "write numbers in the file like 1234.5, without units or other separators"
        )
    raise DataError(f"{quote(text)} is not a number", hint=hint)


def _as_missing_hint(
    text: str, kind: str, name: str, column: Column | None
) -> str | None:
    """Return how to read a text as a missing number; None for labels and long texts."""
    limits = None if column is None else column.limits
    if len(text) > _MOST_SHOWN or (limits is not None and limits.is_label):
        return None
    listed = f"{{{name}: [{json.dumps(text, ensure_ascii=False)}]}}"
    return (
        f"to treat it as missing, write {kind}: {{missing_values: {listed}, missing:"
        f" {{{name}: 0}}}}"
    )


_OTHER_DATE = re.compile(r"[0-9]{1,4}([./-])[0-9]{1,2}\1[0-9]{1,4}( .*)?")
_FORMATTED = re.compile(r"[-+]?[$€£]? ?[-+]?[0-9][0-9.,' \u00a0]*[%$€£]?")
"""Formatted numbers: `1,234.5`, `1 234,5`, `12 %`, `$5`."""


@cache
def _bounds(dtype: np.dtype[np.generic]) -> tuple[float, float] | tuple[int, int]:
    if dtype.kind == "b":
        return 0, 1
    if dtype_kind(dtype) == "f":
        limits: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        return float(limits.min), float(limits.max)
    integers = np.iinfo(str(dtype))
    return int(integers.min), int(integers.max)


def quote(text: str) -> str:
    """Return the text of a cell for a message, shortened."""
    return repr(text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 3] + "...")
