"""What a reader is asked to read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from placer.plan.settings.data.columns import Column
from placer.plan.settings.data.source import Data
from placer.plan.settings.data.sources import ColumnMap, Source


def ignore_progress(rows: int) -> None:
    """Do nothing: the default `report` of a reader."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of reading a source.

    Attributes:
        other_columns: the inputs that only other processes read from the source.
        with_digests: whether to compute digests of the columns and `other_columns`, to
            compare them with those of other processes.
        seed: the seed that draws the rows to compare.
        report: called with the number of rows read so far.
        nbytes: the most memory that the rows of a function that yields them may use, in
            bytes; None for no limit.
        first_rows: how many rows are needed to check a source; a reader may return more.
            None for all.
        to_predict: whether the rows are to be predicted. Then there may be none, and
            the options of a `csv:` source may be about columns that are not there,
            such as labels.
    """

    other_columns: tuple[Column, ...] = ()
    with_digests: bool = False
    seed: int = 0
    report: Callable[[int], None] = ignore_progress
    nbytes: int | None = None
    first_rows: int | None = None
    to_predict: bool = False


@dataclass(frozen=True)
class ReadRequest:
    """What a reader is asked to read.

    Attributes:
        data: the settings of the source.
        source: its kind and its path.
        columns: the inputs to read.
        feeds: the column or columns that feed each input, `options.other_columns` too,
            by the input's name.
        folder: the folder that the path of a file or a module is relative to.
        options: digests, progress reports and limits.
    """

    data: Data
    source: Source
    columns: Sequence[Column]
    feeds: ColumnMap
    folder: Path
    options: ReadOptions

    @cached_property
    def used(self) -> tuple[Column, ...]:
        """The inputs that this node or another one reads."""
        return (*self.columns, *self.options.other_columns)

    @cached_property
    def single_feeds(self) -> dict[str, str]:
        """The column that feeds each input, of a kind without `column_lists`."""
        return {n: one for n, one in self.feeds.items() if isinstance(one, str)}
