"""The contents of a file, as the module `KIND_contents` of each kind of source reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

COMPLETE: Final = (
    "write a file as NAME.tmp, and rename it when it is complete; replace this one, or"
    " rename it to .NAME, which does not count"
)
"""The hint for a file that is not complete."""


@dataclass(frozen=True)
class Contents:
    """The columns and the rows of a file.

    Attributes:
        columns: the type of each column that the inputs read; "" in a format without types.
        rows: the number of rows.
    """

    columns: dict[str, str]
    rows: int
