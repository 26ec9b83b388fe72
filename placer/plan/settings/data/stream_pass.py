"""A pass of a stream: the files that the control node has chosen and announced to all nodes."""

from __future__ import annotations

from msgspec import Struct

from placer.plan.settings.fields import Count, Size


class PassFile(Struct, frozen=True):
    """A file of a pass.

    Attributes:
        path: its path; a relative one starts at the data folder.
        size: its size in bytes.
        digest: the CRC-32 of its size and some of its bytes.
        rows: its number of rows.
        columns: the type of each column that the inputs read; "" in a format without types.
    """

    path: str
    size: Size
    digest: Size
    rows: Size
    columns: dict[str, str]


class StreamPass(Struct, frozen=True):
    """The files of a pass, in the order in which their rows are read.

    Attributes:
        number: the number of the pass, from 1.
        files: its files; none for a Python function.
        is_late: whether its files appeared after later names had been trained.
        rows_of_lanes: the number of rows that the lanes of a Python function give.
    """

    number: Count
    files: tuple[PassFile, ...]
    is_late: bool = False
    rows_of_lanes: Size = 0

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.rows_of_lanes + sum(file.rows for file in self.files)
