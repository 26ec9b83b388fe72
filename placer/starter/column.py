"""What a column of a table holds: numbers, words, or nothing that a model can use."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from placer.config.missing import MISSING
from placer.readers.arrow_text import read_text
from placer.readers.parquet import can_be_words
from placer.report.numbers import format_count
from placer.starter.table import Table

MAX_WORDS: Final = 100
"""The most words of a vocabulary."""
MAX_CODES: Final = 10
"""The most different whole numbers that are read as words."""
_LEAST_ROWS_PER_CODE: Final = 10
_MOSTLY: Final = 0.95
_ID = re.compile(r"(?i)(.*[^a-z])?(id|uuid|guid|index|key)|.*[a-z]I[dD]")
_WITH_COMMA = re.compile(r"[-+]?\d[\d.,]*")
_DATE = re.compile(
    r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2}))"
    r"([T ]\d{1,2}:\d{2}.*)?|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?"
)


@dataclass(frozen=True, slots=True)
class Numbers:
    """A column of numbers; `values` has the float64 of each row, NaN if missing."""

    name: str
    values: np.ndarray

    @property
    def present(self) -> np.ndarray:
        """The values of the rows that have one."""
        present: np.ndarray = self.values[~np.isnan(self.values)]
        return present

    @property
    def missing(self) -> int:
        """The number of rows without a value."""
        return len(self.values) - len(self.present)

    @property
    def median(self) -> float:
        """The median of the values, to four digits."""
        return float(f"{np.median(self.present):.4g}")


@dataclass(frozen=True, slots=True)
class Words:
    """A column of words.

    Attributes:
        name: the name of the column.
        words: the words, sorted: numbers by value, others by their characters.
        counts: how many rows have each of them.
        missing: the number of rows without a word.
        others: the number of rows with a word that is too rare.
        is_codes: whether the words are whole numbers.
    """

    name: str
    words: tuple[str, ...]
    counts: tuple[int, ...]
    missing: int
    others: int = 0
    is_codes: bool = False


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A column that the model does not use; `why` is a phrase after its name."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class _Cells:
    """The values of a column: as text, "" if missing, and as numbers if all are.

    `kind` is what the values are, if they are neither numbers nor words.
    """

    text: pa.StringArray | None
    numbers: np.ndarray | None
    kind: str | None = None


def describe_column(table: Table, name: str) -> Numbers | Words | LeftOut:
    """Return what a column holds, as an input of a model."""
    if not name:
        return LeftOut("", "the column has no name")
    if name in table.repeated:
        return LeftOut(name, "several columns have this name")
    cells = _read_cells(table, name)
    if cells.kind is not None:
        return LeftOut(name, cells.kind)
    if cells.numbers is not None:
        return _describe_numbers(name, cells)
    return _describe_words(name, cells)


def count_values(table: Table, name: str) -> Words | LeftOut:
    """Return all different values of a column as words, for the classes of a label."""
    cells = _read_cells(table, name)
    if cells.text is None:
        return LeftOut(name, cells.kind or "it holds no words and no whole numbers")
    return _all_words(name, cells)


def read_numbers(table: Table, name: str) -> Numbers | None:
    """Return a column as numbers; None if it holds something else."""
    numbers = _read_cells(table, name).numbers
    return None if numbers is None else Numbers(name, numbers)


def _read_cells(table: Table, name: str) -> _Cells:
    array = table.columns[name]
    if table.kind == "csv":
        is_missing = pc.is_in(array, pa.array(sorted(MISSING)))
        text = pc.if_else(is_missing, "", array)
        return _Cells(text, _parse_numbers(text))
    type_ = array.type
    if pa.types.is_boolean(type_) or pa.types.is_integer(type_):
        return _Cells(read_text(array), _to_float(array))
    if pa.types.is_floating(type_):
        numbers = _to_float(array)
        return _Cells(None, numbers, _infinite(numbers))
    if can_be_words(type_):
        return _Cells(read_text(array), None)
    if pa.types.is_temporal(type_):
        return _Cells(None, None, f"it holds times ({type_}): {_TIMES}")
    if pa.types.is_null(type_):
        return _Cells(None, None, "all its values are missing")
    return _Cells(None, None, f"it holds {type_}: only numbers and words are read here")


_TIMES: Final = "write numbers to the file, such as the month or the days since a date"


def _to_float(array: pa.Array) -> np.ndarray:
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    numbers: np.ndarray = array.cast(pa.float64(), safe=False).to_numpy(
        zero_copy_only=False
    )
    return numbers


def _infinite(numbers: np.ndarray) -> str | None:
    limit = np.finfo(np.float32).max
    if (np.abs(numbers[~np.isnan(numbers)]) > limit).any():
        return "some of its numbers are infinite or too large for float32"
    return None


def _parse_numbers(text: pa.StringArray) -> np.ndarray | None:
    """Return texts as float64, NaN for ""; None if one is not a number for float32."""
    try:
        numbers = _to_float(pc.if_else(pc.equal(text, ""), None, text))
    except pa.ArrowInvalid:
        return None
    is_nan = np.isnan(numbers)
    if is_nan.sum() != pc.sum(pc.equal(text, "")).as_py() or _infinite(numbers):
        return None
    return None if is_nan.all() else numbers


def _describe_numbers(name: str, cells: _Cells) -> Numbers | Words | LeftOut:
    assert cells.numbers is not None
    column = Numbers(name, cells.numbers)
    present, rows = column.present, len(column.values)
    if len(present) == 0:
        return LeftOut(name, "all its values are missing")
    distinct = np.unique(present)
    if len(distinct) == 1:
        return LeftOut(name, f"all its values are {distinct[0]:.6g}")
    if column.missing >= _MOSTLY * rows:
        return LeftOut(name, f"{_percent(column.missing, rows)} of its cells are empty")
    is_whole = bool((distinct == np.floor(distinct)).all())
    if is_whole and len(distinct) == rows:
        if distinct[-1] - distinct[0] == rows - 1:
            return LeftOut(name, "it numbers the rows")
        if _ID.fullmatch(name):
            return LeftOut(
                name, "it is different in each row, and its name is of an id"
            )
    few = 2 < len(distinct) <= MAX_CODES
    enough = len(present) >= _LEAST_ROWS_PER_CODE * len(distinct)
    if is_whole and few and enough and cells.text is not None:
        codes = _all_words(name, cells)
        if len(codes.words) == len(distinct):  # no number is written in two ways
            return codes
    return column


def _describe_words(name: str, cells: _Cells) -> Words | LeftOut:
    found = _all_words(name, cells)
    present, rows = sum(found.counts), sum(found.counts) + found.missing
    if not present:
        return LeftOut(name, "all its cells are empty")
    if len(found.words) == 1 and not found.missing:
        return LeftOut(name, f"all its values are {_shorten(found.words[0])}")
    if found.missing >= _MOSTLY * rows:
        return LeftOut(name, f"{_percent(found.missing, rows)} of its cells are empty")
    example = _shorten(found.words[0])
    if all(_DATE.fullmatch(word) for word in found.words):
        return LeftOut(name, f"it holds times, such as {example}: {_TIMES}")
    # A word of a single row is known of no other row.
    frequent = {w: n for w, n in zip(found.words, found.counts, strict=True) if n > 1}
    covered = sum(frequent.values())
    is_rare, are_many = covered < present / 2, len(frequent) > MAX_WORDS
    if (is_rare or are_many) and all(map(_WITH_COMMA.fullmatch, found.words)):
        return LeftOut(
            name, f"its numbers have commas, such as {example}: write them as 1234.5"
        )
    if is_rare:
        return LeftOut(
            name, f"{format_count(len(found.words))} different texts, such as {example}"
        )
    if are_many:
        return LeftOut(
            name,
            f"{format_count(len(frequent))} different words are too many to list here,"
            f" such as {example}: a feature can hash them",
        )
    return Words(
        name,
        tuple(frequent),
        tuple(frequent.values()),
        found.missing,
        others=present - covered,
    )


def _all_words(name: str, cells: _Cells) -> Words:
    assert cells.text is not None
    counts: Counter[str] = Counter()
    for pair in pc.value_counts(cells.text).to_pylist():
        counts[pair["values"].strip()] += pair["counts"]
    missing = counts.pop("", 0)
    is_codes = cells.numbers is not None and "true" not in counts
    words = sorted(counts, key=(lambda w: (float(w), w)) if is_codes else None)
    return Words(
        name, tuple(words), tuple(counts[w] for w in words), missing, is_codes=is_codes
    )


def _percent(part: int, whole: int) -> str:
    return f"{100 * part // whole} %"


def _shorten(word: str) -> str:
    return repr(word if len(word) <= 30 else word[:27] + "...")
