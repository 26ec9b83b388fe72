"""The arguments of a reader."""

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
    """Options for reading a source.

    Attributes:
        other_columns: inputs that only other processes read from the source.
        with_digests: compute digests of the columns and `other_columns`, to compare
            with other processes.
        seed: the seed that draws the rows to compare.
        report: called with the number of rows read so far.
        nbytes: the memory limit for the rows of a generator, in bytes; None for no
            limit.
        first_rows: the number of rows needed to check a source; None for all. A reader
            may return more.
        all_files: with `first_rows`, check the columns of all files of a set.
        files: the paths of the files of a set, in their order. By default, they are listed
            when the source is opened.
        to_predict: the rows are for a prediction. The source may be empty, and options
            of a `csv:` source may name missing columns, such as labels.
    """

    other_columns: tuple[Column, ...] = ()
    with_digests: bool = False
    seed: int = 0
    report: Callable[[int], None] = ignore_progress
    nbytes: int | None = None
    first_rows: int | None = None
    all_files: bool = False
    files: tuple[str, ...] | None = None
    to_predict: bool = False


@dataclass(frozen=True)
class ReadRequest:
    """A request to read inputs from a source.

    Attributes:
        data: the settings of the source.
        source: its kind and its path.
        columns: the inputs to read.
        feeds: the column or columns that feed each input, including
            `options.other_columns`, by input name.
        folder: the folder for relative paths of files and modules.
        options: digests, progress reports and limits.
        is_first: whether the options of columns are checked, as for the first file of a set.
    """

    data: Data
    source: Source
    columns: Sequence[Column]
    feeds: ColumnMap
    folder: Path
    options: ReadOptions
    is_first: bool = True

    @cached_property
    def used(self) -> tuple[Column, ...]:
        """The inputs that any node reads."""
        return (*self.columns, *self.options.other_columns)

    @cached_property
    def single_feeds(self) -> dict[str, str]:
        """The column that feeds each input, for a kind without `column_lists`."""
        return {n: one for n, one in self.feeds.items() if isinstance(one, str)}
