"""Kinds of columns: numbers, words, ids, dates, and columns that a model cannot use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

MAX_CODES: Final = 10
"""The largest number of different whole numbers that are read as words."""
SPARSE_IDS: Final = 4_000
"""The number of different ids from which on a column uses a sparse table."""


@dataclass(frozen=True, slots=True)
class Values:
    """The values of a column.

    Attributes:
        name: the name of the column.
        values: a float64 for each row, NaN if missing.
    """

    name: str
    values: np.ndarray

    @property
    def present(self) -> np.ndarray:
        """The values without the missing ones."""
        present: np.ndarray = self.values[~np.isnan(self.values)]
        return present

    @property
    def missing(self) -> int:
        """The number of rows without a value."""
        return len(self.values) - len(self.present)


@dataclass(frozen=True, slots=True)
class Numbers(Values):
    """A column of numbers.

    Attributes:
        markers: unusual words that mean a missing value in this column.
        first_marker: the number of cells with a marker, and the first such cell.
    """

    markers: tuple[str, ...] = ()
    first_marker: str = ""

    @property
    def may_be_ids(self) -> bool:
        """True if the numbers are large and whole, and each is shared by many rows."""
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
        counts: the number of rows with each word.
        missing: the number of rows without a word.
        others: the number of rows with a word that is too rare.
        is_codes: True if the words are whole numbers.
    """

    name: str
    words: tuple[str, ...]
    counts: tuple[int, ...]
    missing: int
    others: int = 0
    is_codes: bool = False


@dataclass(frozen=True, slots=True)
class Ids:
    """A column of identifiers, such as users or items. Each id has a trained vector.

    Attributes:
        name: the name of the column.
        distinct: the number of different ids.
        are_numbers: True if the ids are whole numbers, which are compared by value.
    """

    name: str
    distinct: int
    are_numbers: bool

    @property
    def is_sparse(self) -> bool:
        """True if training adds a row to the table for each new id."""
        return self.distinct >= SPARSE_IDS

    @property
    def bins(self) -> int:
        """The number of rows of the table: eight per id, so that few ids share a row."""
        bins = 64
        while bins < 8 * self.distinct:
            bins *= 2
        return bins


@dataclass(frozen=True, slots=True)
class Dates(Values):
    """A column of dates or times, with values in days since 1970-01-01."""

    @property
    def has_times(self) -> bool:
        """True if a value includes a time of day."""
        return bool((self.present % 1 != 0).any())

    @property
    def median(self) -> int:
        """The median of the days."""
        return int(np.median(self.present))

    @property
    def first(self) -> int:
        """The first day."""
        return int(np.floor(self.present.min()))

    @property
    def last(self) -> int:
        """The last day."""
        return int(np.floor(self.present.max()))


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A column that the model does not use.

    Attributes:
        name: the name of the column.
        why: the reason, as a phrase after the name.
    """

    name: str
    why: str


Column = Numbers | Words | Ids | Dates | LeftOut
