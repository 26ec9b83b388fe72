"""The cells of a column: as text, and as numbers if all are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from placer.config.missing import MISSING
from placer.readers.arrow_text import is_text, read_text
from placer.readers.csv_cells import cast_floats
from placer.readers.parquet import can_be_words
from placer.starter.table import Table

_NO_WORDS = frozenset(text for text in MISSING if text.lower() not in ("none", "-"))
"""The cells that are no words."""


@dataclass(frozen=True, slots=True)
class ColumnCells:
    """The values of a column.

    Attributes:
        text: the values as text, "" if missing; None if they have no text.
        words: the same, with `none` and `-`, which are missing numbers, but words.
        numbers: the values as float64, NaN if missing; None if one is no number.
        kind: what the values are, if they are neither numbers nor words.
    """

    text: pa.StringArray | None
    words: pa.StringArray | None
    numbers: np.ndarray | None
    kind: str | None = None


def describe_cells(
    table: Table, name: str, markers: tuple[str, ...] = ()
) -> ColumnCells:
    """Return the values of a column of a table; `markers` are texts that mean a missing
    one, besides the usual texts."""
    array = table.columns[name]
    # Text and decimals of a Parquet file are read as the cells of a CSV file are.
    if table.kind == "csv" or markers or _is_parsed(array.type):
        array = read_text(array)
        text = _without(array, MISSING.union(markers))
        words = _without(array, _NO_WORDS.union(markers))
        return ColumnCells(text, words, _parse_numbers(text))
    type_ = array.type
    if pa.types.is_boolean(type_) or pa.types.is_integer(type_):
        text = read_text(array)
        return ColumnCells(text, text, _to_float(array))
    if pa.types.is_floating(type_):
        numbers = _to_float(array)
        text = _text_of_whole(numbers)
        return ColumnCells(text, text, numbers, _infinite(numbers))
    if pa.types.is_temporal(type_):
        return ColumnCells(None, None, None, f"it holds times ({type_}): {TIMES}")
    if pa.types.is_null(type_):
        return ColumnCells(None, None, None, "all its values are missing")
    return ColumnCells(
        None, None, None, f"it holds {type_}: only numbers and words are read here"
    )


def _text_of_whole(numbers: np.ndarray) -> pa.StringArray | None:
    """Return floats as text if all are whole numbers, as those of ids and classes with
    gaps are; None if one is not."""
    is_nan = np.isnan(numbers)
    present = numbers[~is_nan]
    if not ((np.abs(present) < 2**53) & (present == np.floor(present))).all():
        return None
    whole = pa.array(np.where(is_nan, 0, numbers).astype(np.int64))
    return pc.if_else(pa.array(is_nan), "", whole.cast(pa.string()))


def _is_parsed(type_: pa.DataType) -> bool:
    if pa.types.is_dictionary(type_):
        return can_be_words(type_)
    return is_text(type_) or bool(pa.types.is_decimal(type_))


TIMES = "write numbers to the file, such as the month or the days since a date"


def _without(text: pa.StringArray, missing: frozenset[str]) -> pa.StringArray:
    return pc.if_else(pc.is_in(text, pa.array(sorted(missing))), "", text)


def count_words(cells: ColumnCells) -> tuple[Counter[str], int]:
    """Return how many rows have each word, without the blanks around it, and how many
    have none. Words of a column of numbers are those of the numbers."""
    return count_texts(cells.words if cells.numbers is None else cells.text)


def count_texts(texts: pa.StringArray | None) -> tuple[Counter[str], int]:
    """Return how many rows have each text, and how many have none."""
    assert texts is not None
    counts: Counter[str] = Counter()
    for pair in pc.value_counts(texts).to_pylist():
        counts[pair["values"].strip()] += pair["counts"]
    missing = counts.pop("", 0)
    return counts, missing


def misfits(words: Mapping[str, int]) -> dict[str, int]:
    """Return the words that are not finite numbers, with their counts."""
    texts = pa.array(words, pa.string())
    return {
        word: words[word]
        for word in texts.to_pylist()
        if _parse_numbers(pa.array([word], pa.string())) is None
    }


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
    is_present = pc.not_equal(text, "")
    present = cast_floats(text.filter(is_present))
    if present is None or not len(present):
        return None
    if np.isnan(present).any() or _infinite(present):
        return None
    numbers = np.full(len(text), np.nan)
    numbers[is_present.to_numpy(zero_copy_only=False)] = present
    return numbers
