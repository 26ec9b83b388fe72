"""Columns of dates and times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from placer.errors import DataError
from placer.readers.features.times import parse_times, split_times
from placer.readers.times import DAY
from placer.starter.cells import ColumnCells
from placer.starter.table import Table


@dataclass(frozen=True, slots=True)
class Dates:
    """A column of dates, or of times of days.

    Attributes:
        name: the name of the column.
        days: the days since 1970-01-01 in each row, float64, NaN if missing.
        has_times: whether hours differ.
    """

    name: str
    days: np.ndarray
    has_times: bool

    @property
    def present(self) -> np.ndarray:
        """The days of the rows that have a date."""
        present: np.ndarray = self.days[~np.isnan(self.days)]
        return present

    @property
    def missing(self) -> int:
        """The number of rows without a date."""
        return len(self.days) - len(self.present)

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


def read_dates(table: Table, name: str, cells: ColumnCells) -> Dates | None:
    """Return the dates of a column; None if it holds something else."""
    array = table.columns[name]
    if pa.types.is_date(array.type) or pa.types.is_timestamp(array.type):
        whole, nanoseconds = split_times(array)
        days = whole + nanoseconds / DAY
        days[array.is_null().to_numpy(zero_copy_only=False)] = np.nan
    elif cells.text is not None and cells.numbers is None:
        encoded = cells.text.dictionary_encode()
        words = pc.utf8_trim_whitespace(encoded.dictionary)
        is_present = pc.not_equal(words, "")
        try:
            whole, nanoseconds = parse_times(words.filter(is_present), str)
        except DataError:
            return None
        parsed = np.full(len(words), np.nan)
        parsed[is_present.to_numpy(zero_copy_only=False)] = whole + nanoseconds / DAY
        days = parsed[encoded.indices.to_numpy()]
    else:
        return None
    present = days[~np.isnan(days)]
    if not len(present):
        return None
    return Dates(name, days, bool((present != np.floor(present)).any()))
