"""What a column of a table holds: numbers, words, ids, dates, or nothing that a model can
use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

import numpy as np

from placer.report.numbers import format_count
from placer.starter.cells import (
    ColumnCells,
    count_texts,
    count_words,
    describe_cells,
    misfits,
)
from placer.starter.table import Table
from placer.starter.times import Dates, read_dates

MAX_WORDS: Final = 100
"""The most words of a vocabulary."""
MAX_CODES: Final = 10
"""The most different whole numbers that are read as words."""
SPARSE_IDS: Final = 4_000
"""From so many different ids on, they have a sparse table."""
_LEAST_ROWS_PER_CODE: Final = 10
_LEAST_ROWS_PER_ID: Final = 2
_LEAST_NUMBERED: Final = 200
_MOSTLY: Final = 0.95
_ALMOST_NUMBERS: Final = 0.8
_MAX_MARKERS: Final = 3
_ROW_ID = re.compile(r"(?i)(.*[^a-z])?(id|uuid|guid|index|key)|.*[a-z]I[dD]")
_ID = re.compile(
    r"(?i)(.*[^a-z])?(id|uuid|guid|key|code|zip|zipcode|postcode|sku)|.*[a-z]I[dD]"
)
_OTHER_DATE = re.compile(
    r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2}))"
    r"([T ]\d{1,2}:\d{2}.*)?|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?"
)
_WITH_COMMA = re.compile(r"[-+]?\d[\d.,]*")


@dataclass(frozen=True, slots=True)
class Numbers:
    """A column of numbers.

    Attributes:
        name: the name of the column.
        values: the float64 of each row, NaN if missing.
        markers: the words that mean a missing value here, besides the usual ones.
        first_marker: how many cells have one of them, and the first.
    """

    name: str
    values: np.ndarray
    markers: tuple[str, ...] = ()
    first_marker: str = ""

    @property
    def present(self) -> np.ndarray:
        """The values of the rows that have one."""
        present: np.ndarray = self.values[~np.isnan(self.values)]
        return present

    @property
    def are_finite(self) -> bool:
        """Whether all of them are finite."""
        return bool(np.isfinite(self.present).all())

    @property
    def missing(self) -> int:
        """The number of rows without a value."""
        return len(self.values) - len(self.present)

    @property
    def may_be_ids(self) -> bool:
        """Whether these are large whole numbers that many rows have in common."""
        present = self.present
        distinct = np.unique(present)
        return bool(
            (present % 1 == 0).all()
            and present.min() >= 1000
            and MAX_CODES < len(distinct) <= len(present) / 4
        )

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
class Ids:
    """A column that names things, each of which has a vector: users, items, words.

    Attributes:
        name: the name of the column.
        distinct: how many different ids were found.
        are_numbers: whether they are whole numbers, which are compared by value.
    """

    name: str
    distinct: int
    are_numbers: bool

    @property
    def is_sparse(self) -> bool:
        """Whether the table of vectors has a row for each id that training meets."""
        return self.distinct >= SPARSE_IDS

    @property
    def bins(self) -> int:
        """The rows of the table: eight times the ids, so that few of them share one."""
        bins = 64
        while bins < 8 * self.distinct:
            bins *= 2
        return bins


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A column that the model does not use; `why` is a phrase after its name."""

    name: str
    why: str


Column = Numbers | Words | Ids | Dates | LeftOut


def describe_column(table: Table, name: str, *, is_id: bool = False) -> Column:
    """Return what a column holds, as an input of a model. `is_id` says that it has ids."""
    if not name:
        return LeftOut("", "the column has no name")
    if name in table.repeated:
        return LeftOut(name, "several columns have this name")
    cells = describe_cells(table, name)
    if is_id:
        return _describe_ids(name, cells, is_asked=True)
    if (dates := read_dates(table, name, cells)) is not None:
        return _describe_dates(dates)
    if cells.kind is not None:
        return LeftOut(name, cells.kind)
    if cells.numbers is not None:
        return _describe_numbers(name, cells)
    return _describe_words(table, name, cells)


def count_values(table: Table, name: str) -> Words | LeftOut:
    """Return all different values of a column as words, for the classes of a label."""
    cells = describe_cells(table, name)
    if cells.text is None:
        return LeftOut(name, cells.kind or "it holds no words and no whole numbers")
    return _all_words(name, cells)


def read_numbers(table: Table, name: str) -> Numbers | None:
    """Return a column as numbers; None if it holds something else."""
    numbers = describe_cells(table, name).numbers
    return None if numbers is None else Numbers(name, numbers)


def count_numbers(table: Table, name: str) -> int:
    """Return how many different numbers a column of numbers has."""
    return _count_numbers(describe_cells(table, name))


def _count_numbers(cells: ColumnCells) -> int:
    assert cells.numbers is not None
    distinct = np.unique(cells.numbers[~np.isnan(cells.numbers)])
    if cells.text is None or (np.abs(distinct) < 2**53).all():
        return len(distinct)
    # Of larger numbers several are one float.
    return len({Decimal(text) for text in count_texts(cells.text)[0]})


def find_missing(table: Table, name: str) -> str:
    """Return where the first row without a value is, of a column that has such rows."""
    cells = describe_cells(table, name)
    if cells.numbers is not None:
        return table.position(int(np.argmax(np.isnan(cells.numbers))))
    assert cells.words is not None
    words = cells.words.to_pylist()
    return table.position(next(i for i, word in enumerate(words) if not word.strip()))


def find_unscalable(values: np.ndarray) -> str:
    """Return why different numbers cannot be scaled to variance 1; nothing if they can."""
    with np.errstate(over="ignore", invalid="ignore"):
        deviation = values.std()
    if 0 < deviation < np.inf:
        return ""
    size = "small" if deviation == 0 else "large"
    largest = values[np.argmax(np.abs(values))]
    if (values == largest).all():
        return f"its numbers, all about {largest:.6g}, are equal in float64"
    return (
        f"its numbers, such as {largest:.6g}, are too {size} for a standard deviation"
    )


def numbers_rows(values: np.ndarray) -> bool:
    """Return whether different whole numbers are those of rows, in any order."""
    steps = np.unique(np.diff(np.unique(values)))
    is_even = len(steps) == 1 and bool((values % 1 == 0).all())
    is_unique = is_even and len(np.unique(values)) == len(values)
    return is_unique and (steps[0] == 1 or len(values) >= _LEAST_NUMBERED)


def _describe_dates(dates: Dates) -> Dates | LeftOut:
    rows, missing = len(dates.days), dates.missing
    if missing >= _MOSTLY * rows:
        return LeftOut(dates.name, f"{_percent(missing, rows)} of its cells are empty")
    if dates.first == dates.last and not dates.has_times:
        return LeftOut(dates.name, "all its dates are the same")
    return dates


def _describe_numbers(name: str, cells: ColumnCells) -> Column:
    assert cells.numbers is not None
    column = Numbers(name, cells.numbers)
    present, rows = column.present, len(column.values)
    if len(present) == 0:
        return LeftOut(name, "all its values are missing")
    distinct = _count_numbers(cells)
    if distinct == 1:
        return LeftOut(name, f"all its values are {present[0]:.6g}")
    if column.missing >= _MOSTLY * rows:
        return LeftOut(name, f"{_percent(column.missing, rows)} of its cells are empty")
    is_whole = bool((present == np.floor(present)).all())
    if is_whole and distinct == rows:
        if numbers_rows(present):
            return LeftOut(name, "it numbers the rows")
        if _ROW_ID.fullmatch(name):
            return LeftOut(
                name, "it is different in each row, and its name is of an id"
            )
    if is_whole and distinct > MAX_CODES and _ID.fullmatch(name):
        return _describe_ids(name, cells)
    few = 2 < distinct <= MAX_CODES
    enough = len(present) >= _LEAST_ROWS_PER_CODE * distinct
    if is_whole and few and enough and cells.text is not None:
        codes = _all_words(name, cells)
        if len(codes.words) == distinct:  # no number is written in two ways
            return codes
    if why := find_unscalable(present):
        return LeftOut(name, why)
    return column


def _describe_ids(
    name: str, cells: ColumnCells, *, is_asked: bool = False
) -> Ids | Words | LeftOut:
    """Describe a column of ids; `is_asked` says that the user has named it so."""
    if cells.text is None:
        return LeftOut(name, "ids are whole numbers or texts")
    counts, missing = count_words(cells)
    rows = sum(counts.values()) + missing
    if not counts:
        return LeftOut(name, "all its cells are empty")
    if len(counts) == 1 and not missing:
        return LeftOut(name, f"all its values are {_shorten(next(iter(counts)))}")
    if sum(counts.values()) < _LEAST_ROWS_PER_ID * len(counts):
        what = f"it has {format_count(len(counts))} ids in {format_count(rows)} rows"
        if len(counts) == rows:
            what = "it is different in each row"
        return LeftOut(name, f"{what}, and so in new rows")
    if len(counts) <= MAX_CODES and not is_asked:
        return _all_words(name, cells)
    numbers = cells.numbers
    are_whole = numbers is not None and _are_exact(numbers[~np.isnan(numbers)])
    return Ids(name, len(counts), are_whole)


def _are_exact(numbers: np.ndarray) -> bool:
    """Return whether numbers are whole, and no two of them are one float."""
    return bool(((np.abs(numbers) < 2**53) & (numbers == np.floor(numbers))).all())


def _describe_words(table: Table, name: str, cells: ColumnCells) -> Column:
    counts, missing = count_words(cells)
    present, rows = sum(counts.values()), sum(counts.values()) + missing
    if not present:
        return LeftOut(name, "all its cells are empty")
    found = sorted(counts)
    if len(found) == 1 and not missing:
        return LeftOut(name, f"all its values are {_shorten(found[0])}")
    if missing >= _MOSTLY * rows:
        return LeftOut(name, f"{_percent(missing, rows)} of its cells are empty")
    if all(map(_OTHER_DATE.fullmatch, found)):
        why = f"it holds dates such as {_shorten(found[0])}: write them as 2024-05-31"
        return LeftOut(name, f"{why} or 2024-05-31T18:30")
    if almost := _almost_numbers(table, name, cells):
        return almost
    example = _shorten(found[0])
    # A word of a single row is known of no other row.
    frequent = {word: counts[word] for word in found if counts[word] > 1}
    covered = sum(frequent.values())
    is_rare, are_many = covered < present / 2, len(frequent) > MAX_WORDS
    if (is_rare or are_many) and all(map(_WITH_COMMA.fullmatch, found)):
        return LeftOut(
            name, f"its numbers have commas, such as {example}: write them as 1234.5"
        )
    if is_rare:
        what = f"{format_count(len(found))} different texts"
        if len(found) == rows:
            what = "a text that is different in each row"
        return LeftOut(name, f"{what}, such as {example}")
    if are_many or (_ID.fullmatch(name) and len(found) > MAX_CODES):
        return _describe_ids(name, cells)
    return Words(
        name,
        tuple(frequent),
        tuple(frequent.values()),
        missing,
        others=present - covered,
    )


def _almost_numbers(
    table: Table, name: str, cells: ColumnCells
) -> Numbers | LeftOut | None:
    """Describe a column of which few values are no numbers; None for other columns.

    Few different words, such as `unknown`, are missing values.
    """
    if not (wrong := _find_misfits(cells)):
        return None
    first = _first_misfit(table, name, wrong)
    cells = describe_cells(table, name, tuple(wrong))
    if len(wrong) <= _MAX_MARKERS and cells.numbers is not None:
        described = _describe_numbers(name, cells)
        if isinstance(described, LeftOut):
            return described
        return Numbers(name, cells.numbers, tuple(sorted(wrong)), first)
    return LeftOut(
        name,
        f"its values are numbers but for {first}: correct them, or list them in"
        " missing_values",
    )


def find_misfit(table: Table, name: str) -> str | None:
    """Return how many values of a column are no numbers, and the first; None if all are
    numbers, or few are."""
    wrong = _find_misfits(describe_cells(table, name))
    return _first_misfit(table, name, wrong) if wrong else None


def _find_misfits(cells: ColumnCells) -> dict[str, int]:
    """Return the values that are no numbers, with their counts, if they are few, and so
    are those of a column of numbers."""
    if cells.text is None:
        return {}
    counts, _ = count_texts(cells.text)
    if len(counts) <= MAX_CODES:
        return {}
    wrong = misfits(counts)
    is_few = sum(wrong.values()) <= sum(counts.values()) * (1 - _ALMOST_NUMBERS)
    return wrong if is_few else {}


def _first_misfit(table: Table, name: str, wrong: Mapping[str, int]) -> str:
    """Return how many values are no numbers, and the first of them."""
    text = describe_cells(table, name).text
    assert text is not None
    words = text.to_pylist()
    first = next(i for i, word in enumerate(words) if word.strip() in wrong)
    count = format_count(sum(wrong.values()))
    return f"{count}, the first is {_shorten(words[first])} in {table.position(first)}"


def _all_words(name: str, cells: ColumnCells) -> Words:
    counts, missing = count_words(cells)
    is_codes = cells.numbers is not None and "true" not in counts
    words = sorted(counts, key=(lambda w: (float(w), w)) if is_codes else None)
    return Words(
        name, tuple(words), tuple(counts[w] for w in words), missing, is_codes=is_codes
    )


def _percent(part: int, whole: int) -> str:
    return f"{100 * part // whole} %"


def _shorten(word: str) -> str:
    return repr(word if len(word) <= 30 else word[:27] + "...")
