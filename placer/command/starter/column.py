"""What a column of a table holds: numbers, words, ids, dates, or nothing that a model can
use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

MAX_CODES: Final = 10
"""The most different whole numbers that are read as words."""
SPARSE_IDS: Final = 4_000
"""From so many different ids on, they have a sparse table."""


@dataclass(frozen=True, slots=True)
class Values:
    """The values of a column.

    Attributes:
        name: the name of the column.
        values: the float64 of each row, NaN if missing.
    """

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


@dataclass(frozen=True, slots=True)
class Numbers(Values):
    """A column of numbers.

    Attributes:
        markers: the words that mean a missing value here, besides the usual ones.
        first_marker: how many cells have one of them, and the first.
    """

    markers: tuple[str, ...] = ()
    first_marker: str = ""

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
class Dates(Values):
    """A column of dates, or of times of days: the values are days since 1970-01-01."""

    @property
    def has_times(self) -> bool:
        """Whether some have a time of the day."""
        return bool((self.present % 1 != 0).any())

    @property
    def median(self) -> int:
        """The day in the middle of all."""
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
    """A column that the model does not use; `why` is a phrase after its name."""

    name: str
    why: str


Column = Numbers | Words | Ids | Dates | LeftOut
