"""Parse the cells of a text column as numbers of an input's dtype."""

from __future__ import annotations

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

from placer.config.columns import Column
from placer.config.csv import MISSING
from placer.errors import DataError, nearest
from placer.readers.column import check_limits, dtype_kind

_BOOLS = {"0": 0, "1": 1} | {
    word: int(word[0] in "tT")
    for word in ("false", "False", "FALSE", "true", "True", "TRUE")
}
MISSING_CELLS = pa.array(sorted(MISSING))


@dataclass(frozen=True, slots=True)
class CellParser:
    """Parses the cells of one column of a file as numbers of an input.

    Attributes:
        kind: the kind of the source, under whose key its options are.
        name: the name of the file's column.
        column: the input.
        dtype: the input's dtype.
        words: the numbers of the words of the column's vocabulary, if it has one.
        unknown: the number of any other word, if there is one.
        missing: the number of a cell without a value, if there is one.
    """

    kind: str
    name: str
    column: Column
    dtype: np.dtype[np.generic]
    words: Mapping[str, int] | None
    unknown: int | None
    missing: float | None

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
        """Parse cells of which one may be wrong, so that its message names it."""
        numbers = np.empty(len(cells), self.dtype)
        for i, cell in enumerate(cells.to_pylist()):
            try:
                numbers[i] = self._parse_cell(cell.strip())
            except DataError as misfit:
                raise DataError(
                    f"{where(i)}: {misfit.message}",
                    hint=misfit.hint or f"input '{self.column.name}' is {self.column}",
                ) from None
        return numbers

    def _parse_at_once(self, cells: pa.StringArray) -> np.ndarray | None:
        """Parse all cells at once; None if one may be wrong."""
        if self.words is not None:
            array = _look_up(cells, self.words, self.unknown)
        else:
            cells = pc.ascii_trim_whitespace(cells)
            if self.missing is not None:
                whole = int(self.missing)
                filled = str(whole if whole == self.missing else self.missing)
                cells = pc.if_else(pc.is_in(cells, MISSING_CELLS), filled, cells)
            kind = dtype_kind(self.dtype)
            if kind == "b":
                array = _look_up(cells, _BOOLS, None)
            else:
                array = cast_floats(cells) if kind == "f" else cast_whole(cells)
        if array is None:
            return None
        low, high = _bounds(self.dtype)
        # A comparison with NaN is false, so NaN does not fit.
        fits = bool(((array >= low) & (array <= high)).all())
        return array.astype(self.dtype) if fits else None

    def _parse_cell(self, text: str) -> float | Decimal:
        kind = dtype_kind(self.dtype)
        if self.words is not None:
            number: float | Decimal = self._word_number(text, self.words)
        elif text in MISSING:
            number = self._missing_number(text)
        elif kind == "b":
            if text not in _BOOLS:
                raise DataError(f"{quote(text)} is not 0, 1, true or false")
            number = _BOOLS[text]
        else:
            number = parse_number(text, kind == "f")
        shown = quote(text)
        if self.words is None and text in MISSING:
            shown = f"{number}, which 'missing' specifies,"
        low, high = _bounds(self.dtype)
        if kind != "f" and number != int(number):
            raise DataError(f"{shown} is not a whole number")
        if not low <= number <= high:
            raise DataError(f"{shown} does not fit {self.dtype}")
        return number if kind == "f" else int(number)

    def _word_number(self, text: str, words: Mapping[str, int]) -> int:
        number = words.get(text, self.unknown)
        if number is None:
            near = nearest(text, words)
            hint = f"add it, or write {self.kind}: {{unknown: {{{self.name}: N}}}}"
            hint += f"; did you mean '{near}'?" if near else ""
            raise DataError(f"{quote(text)} is not in the vocabulary", hint=hint)
        return number

    def _missing_number(self, text: str) -> float:
        if self.missing is None:
            message = f"{quote(text)} is not a number" if text else "the cell is empty"
            hint = f"write its value: {self.kind}: {{missing: {{{self.name}: 0}}}}"
            raise DataError(message, hint=hint)
        return self.missing


def add_cells(cells: pa.StringArray, checksum: int) -> int:
    """Return the digest of some more cells, without the blanks around them, after those
    of `checksum`. It does not depend on the division of the cells into batches."""
    trimmed = pc.ascii_trim_whitespace(cells)
    one_list = pa.ListArray.from_arrays([0, len(cells)], trimmed)
    joined = pc.binary_join(one_list, "\0")[0].as_buffer()
    return zlib.crc32(b"\0", zlib.crc32(joined, checksum))


def _look_up(
    cells: pa.StringArray, words: Mapping[str, int], unknown: int | None
) -> np.ndarray | None:
    """Return the numbers of words, int64[len(cells)]; None if a word has none."""
    encoded = cells.dictionary_encode()
    numbers = [words.get(w.strip(), unknown) for w in encoded.dictionary.to_pylist()]
    try:
        # A word without a number is None, for which numpy raises TypeError.
        result: np.ndarray = np.array(numbers, np.int64)[encoded.indices.to_numpy()]
    except (TypeError, OverflowError):
        return None
    return result


def cast_floats(cells: pa.StringArray) -> np.ndarray | None:
    """Return numbers as float64; None if a cell is not one."""
    return _cast(cells, pa.float64())


def cast_whole(cells: pa.StringArray) -> np.ndarray | None:
    """Return whole numbers as int64 or uint64; None if a cell may not be one, or all have
    to be parsed one by one."""
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


def parse_number(text: str, is_float: bool) -> float | Decimal:
    """Return the finite number in a cell, a float or the exact number; raises DataError
    for anything else."""
    # `float` accepts 1_000 and digits of other scripts, which are not numbers in a file.
    if "_" not in text and text.isascii():
        with suppress(ValueError, InvalidOperation):
            number = float(text)
            if not np.isfinite(number):
                raise DataError(f"{quote(text)} is not a finite number")
            return number if is_float else Decimal(text)
    hint = (
        "a column of words needs csv: {vocabulary: {COLUMN: [WORD, …]}}; if the words are"
        " too many to list, write features: {NAME: {hash: COLUMN}}"
    )
    raise DataError(f"{quote(text)} is not a number", hint=hint)


@cache
def _bounds(dtype: np.dtype[np.generic]) -> tuple[float, float] | tuple[int, int]:
    """Return the least and the greatest number of a dtype."""
    if dtype.kind == "b":
        return 0, 1
    if dtype_kind(dtype) == "f":
        limits: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        return float(limits.min), float(limits.max)
    integers = np.iinfo(str(dtype))
    return int(integers.min), int(integers.max)


def quote(text: str) -> str:
    """Return the text of a cell for a message, shortened."""
    return repr(text if len(text) <= 40 else text[:37] + "...")
