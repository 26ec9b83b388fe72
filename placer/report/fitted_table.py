"""Makes a table that leaves out columns on a narrow screen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from placer.report.console import grid

_ANY_WIDTH = 10_000


@dataclass(frozen=True, slots=True)
class ListColumn:
    """A column of a list. Columns with the largest number `drop` are left out first;
    columns without `drop` stay."""

    name: str
    cells: Sequence[str]
    is_number: bool = False
    drop: int = 0


def fitted_table(columns: Iterable[ListColumn], screen: Console) -> Table:
    """Return a table with the columns that fit on the screen."""
    return list_table(fitting_columns(columns, screen))


def fitting_columns(columns: Iterable[ListColumn], screen: Console) -> list[ListColumn]:
    """Return the columns of a table that fit on the screen."""
    kept = list(columns)
    options = screen.options.update(max_width=_ANY_WIDTH)
    while Measurement.get(screen, options, list_table(kept)).maximum > screen.width:
        droppable = [column for column in kept if column.drop]
        if not droppable:
            break
        kept.remove(max(droppable, key=lambda column: column.drop))
    return kept


def list_table(columns: Sequence[ListColumn]) -> Table:
    """Return a table with these columns."""
    table = grid(*(column.name for column in columns), numbers=())
    for shown, column in zip(table.columns, columns, strict=True):
        shown.no_wrap = True
        shown.justify = "right" if column.is_number else "left"
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*map(Text, row))
    return table
