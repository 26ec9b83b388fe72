"""The cells of a column of text as numbers of an input's dtype."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import repeat
from typing import Any

import ml_dtypes
import numpy as np

from placer.config.csv import MISSING
from placer.errors import DataError, nearest
from placer.readers.column import Column, check_limits, kind_of

_BOOLS = {"0": 0, "1": 1} | {
    word: int(word[0] in "tT")
    for word in ("false", "False", "FALSE", "true", "True", "TRUE")
}


@dataclass(frozen=True, slots=True)
class Cells:
    """How one column of a file becomes numbers of an input.

    `words` are those of its vocabulary, if it has one, and `unknown` is the number of
    any other; `missing` is the number of a cell that holds none.
    """

    source: str
    name: str
    column: Column
    dtype: np.dtype[np.generic]
    words: Mapping[str, int] | None
    unknown: int | None
    missing: float | None

    def read(self, cells: Sequence[str], lines: Sequence[int]) -> np.ndarray:
        """The numbers of some rows, in the input's dtype: [len(cells)].

        `lines` are those of the file on which the cells stand. DataError names the
        line, the column, the text and what it should be.
        """
        numbers = self._quick(cells)
        if numbers is None:
            numbers = self._one_by_one(cells, lines)
        check_limits(
            numbers,
            self.column,
            lambda i: f"{self.source}: line {lines[i]}, column '{self.name}'",
        )
        return numbers

    def _one_by_one(self, cells: Sequence[str], lines: Sequence[int]) -> np.ndarray:
        # Some cell may be wrong: one by one, by the rules themselves.
        numbers = np.empty(len(cells), self.dtype)
        for i, cell in enumerate(cells):
            try:
                numbers[i] = self._number(cell.strip())
            except _MisfitError as misfit:
                raise DataError(
                    f"{self.source}: line {lines[i]}, column '{self.name}': {misfit}",
                    hint=misfit.hint or f"input '{self.column.name}' is {self.column}",
                ) from None
        return numbers

    def _quick(self, cells: Sequence[str]) -> np.ndarray | None:
        """All numbers at once; None where some cell may be wrong."""
        kind = kind_of(self.dtype)
        words, unknown = self.words, self.unknown
        if words is None and kind == "b":
            words, unknown = _BOOLS, None
        array: np.ndarray
        if words is None and self.missing is not None:
            whole = int(self.missing)
            filled = str(whole if whole == self.missing else self.missing)
            cells = [filled if c in MISSING else c for c in map(str.strip, cells)]
        try:
            if words is not None:
                found = map(words.get, map(str.strip, cells), repeat(unknown))
                array = np.fromiter(found, np.int64, len(cells))
            elif not _is_plain("".join(cells)):
                return None
            elif kind == "f":
                array = np.fromiter(map(float, cells), np.float64, len(cells))
            else:
                wide = np.uint64 if kind == "u" else np.int64
                array = np.fromiter(map(int, cells), wide, len(cells))
        except (TypeError, ValueError, OverflowError):
            return None
        low, high = _range(self.dtype)
        # A comparison with NaN is false.
        fits = bool(((array >= low) & (array <= high)).all())
        return array.astype(self.dtype) if fits else None

    def _number(self, text: str) -> float | int:
        kind = kind_of(self.dtype)
        if self.words is not None:
            number: float | int = self._index(text, self.words)
        elif text in MISSING:
            number = self._missing(text)
        elif kind == "b":
            if text not in _BOOLS:
                raise _MisfitError(f"{_shown(text)} is not 0, 1, true or false")
            number = _BOOLS[text]
        else:
            number = _parsed(text, kind == "f")
        told = _shown(text)
        if self.words is None and text in MISSING:
            told = f"{number}, which 'missing' gives,"
        low, high = _range(self.dtype)
        if kind != "f" and number != int(number):
            raise _MisfitError(f"{told} is not a whole number")
        if not low <= number <= high:
            raise _MisfitError(f"{told} does not fit {self.dtype}")
        return number if kind == "f" else int(number)

    def _index(self, text: str, words: Mapping[str, int]) -> int:
        number = words.get(text, self.unknown)
        if number is None:
            near = nearest(text, words)
            hint = f"add it, or write csv: {{unknown: {{{self.name}: N}}}}"
            hint += f"; did you mean '{near}'?" if near else ""
            raise _MisfitError(f"{_shown(text)} is not in the vocabulary", hint)
        return number

    def _missing(self, text: str) -> float:
        if self.missing is None:
            what = f"{_shown(text)} is no number" if text else "the cell is empty"
            hint = f"say what it stands for: csv: {{missing: {{{self.name}: 0}}}}"
            raise _MisfitError(what, hint)
        return self.missing


class _MisfitError(Exception):
    """Why one cell is not what it should be."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def _parsed(text: str, is_float: bool) -> float | int:
    if _is_plain(text):
        if not is_float:
            try:
                return int(text)
            except ValueError:
                pass  # 3.0 is a whole number too
        try:
            number = float(text)
        except ValueError:
            pass
        else:
            if not np.isfinite(number):
                raise _MisfitError(f"{_shown(text)} is not a finite number")
            return number
    hint = "a column of words needs csv: {vocabulary: {COLUMN: [WORD, …]}}"
    raise _MisfitError(f"{_shown(text)} is not a number", hint)


def _is_plain(text: str) -> bool:
    """Whether Python reads no more into it than numbers: 1_000 is none here."""
    return "_" not in text and text.isascii()


@cache
def _range(dtype: np.dtype[np.generic]) -> tuple[float, float] | tuple[int, int]:
    """The least and the greatest number of a dtype."""
    if dtype.kind == "b":
        return 0, 1
    if kind_of(dtype) == "f":
        limits: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        return float(limits.min), float(limits.max)
    whole = np.iinfo(str(dtype))
    return int(whole.min), int(whole.max)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
