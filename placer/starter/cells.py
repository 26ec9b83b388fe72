"""The cells of a column: as text, and as numbers if all are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from placer.config.csv import MISSING
from placer.readers.parquet import can_be_words, read_text
from placer.starter.table import Table


@dataclass(frozen=True, slots=True)
class Cells:
    """The values of a column.

    Attributes:
        text: the values as text, "" if missing; None if they have no text.
        numbers: the values as float64, NaN if missing; None if one is no number.
        kind: what the values are, if they are neither numbers nor words.
    """

    text: pa.StringArray | None
    numbers: np.ndarray | None
    kind: str | None = None


def read_cells(table: Table, name: str, markers: tuple[str, ...] = ()) -> Cells:
    """Return the values of a column of a table; `markers` are texts that mean a missing
    one, besides the usual texts."""
    array = table.columns[name]
    if table.kind == "csv" or markers:
        array = read_text(array)
        is_missing = pc.is_in(array, pa.array(sorted({*MISSING, *markers})))
        text = pc.if_else(is_missing, "", array)
        return Cells(text, _parse_numbers(text))
    type_ = array.type
    if pa.types.is_boolean(type_) or pa.types.is_integer(type_):
        return Cells(read_text(array), _to_float(array))
    if pa.types.is_floating(type_):
        numbers = _to_float(array)
        return Cells(None, numbers, _infinite(numbers))
    if can_be_words(type_):
        return Cells(read_text(array), None)
    if pa.types.is_temporal(type_):
        return Cells(None, None, f"it holds times ({type_}): {TIMES}")
    if pa.types.is_null(type_):
        return Cells(None, None, "all its values are missing")
    return Cells(None, None, f"it holds {type_}: only numbers and words are read here")


TIMES = "write numbers to the file, such as the month or the days since a date"


def count_words(cells: Cells) -> tuple[Counter[str], int]:
    """Return how many rows have each word, without the blanks around it, and how many
    have none."""
    assert cells.text is not None
    counts: Counter[str] = Counter()
    for pair in pc.value_counts(cells.text).to_pylist():
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
    try:
        numbers = _to_float(pc.if_else(pc.equal(text, ""), None, text))
    except pa.ArrowInvalid:
        return None
    is_nan = np.isnan(numbers)
    if is_nan.sum() != pc.sum(pc.equal(text, "")).as_py() or _infinite(numbers):
        return None
    return None if is_nan.all() else numbers
