"""The column that a first model predicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from placer.command.starter.cells import Cells, describe_cells
from placer.command.starter.column import MAX_CODES, LeftOut, Words
from placer.command.starter.inference import (
    all_words,
    find_misfit,
    find_unscalable,
    numbers_rows,
)
from placer.command.starter.table import Table
from placer.errors import DataError, did_you_mean
from placer.report.numbers import format_count

TASKS: Final = ("classification", "regression")
_LABELS: Final = ("label", "target", "class", "y")
_MAX_CLASSES: Final = 100


@dataclass(frozen=True, slots=True)
class Classes:
    """A label with classes.

    Attributes:
        name: the column.
        words: the classes.
        counts: the number of rows of each class.
        is_numbered: True if the file contains class numbers, from 0.
        may_be_quantity: True if the classes are numbers.
    """

    name: str
    words: tuple[str, ...]
    counts: tuple[int, ...]
    is_numbered: bool
    may_be_quantity: bool


@dataclass(frozen=True, slots=True)
class Quantity:
    """A label that is a number, with its mean and standard deviation."""

    name: str
    mean: float
    deviation: float


Label = Classes | Quantity


def find_label(table: Table, label: str | None) -> str:
    """Return the column to predict: `label`, or a guess. Raises DataError if the table
    has no such column."""
    names = [name for name in table.columns if name and name not in table.repeated]
    if label is not None:
        if label in table.repeated:
            raise DataError(
                f"{table.path} has more than one column '{label}'",
                hint="give the columns distinct names",
            )
        if label not in names:
            raise DataError(
                f"{table.path} has no column '{label}'", hint=did_you_mean(label, names)
            )
        return label
    if not names:
        raise DataError(f"{table.path} has no column with a unique name")
    usual = [name for name in names if name.lower() in _LABELS]
    return usual[0] if len(usual) == 1 else names[-1]


def describe_label(
    table: Table, name: str, task: str | None, *, is_guess: bool = False
) -> Label:
    """Describe the label of a model.

    Args:
        table: the table.
        name: the column with the label.
        task: one of `TASKS`. Default: the task that fits the values.
        is_guess: True if the user did not name the column.

    Raises:
        DataError: if the column cannot be predicted.
    """
    cells = describe_cells(table, name)
    values = all_words(cells)
    if cells.missing:
        rows = "1 row has"
        if cells.missing > 1:
            rows = f"{format_count(cells.missing)} rows have"
        first = "" if cells.missing == 1 else "the first "
        raise DataError(
            f"{table.path}: {rows} no value for the label '{name}': "
            f"{first}{cells.position(int(np.argmax(cells.is_missing)))}",
            hint="remove these rows, or choose another column with --label COLUMN",
        )
    if cells.numbers is not None and cells.kind is not None:
        raise _useless_error(table, name, cells.kind)
    if cells.numbers is not None and task != "classification":
        if is_guess and numbers_rows(cells.numbers):
            raise DataError(
                f"{table.path}: the guessed label '{name}' contains row numbers",
                hint="name the column to predict with --label COLUMN",
            )
        are_whole = bool((cells.numbers % 1 == 0).all())
        few = are_whole and cells.distinct_numbers <= MAX_CODES
        if task == "regression" or not few or isinstance(values, LeftOut):
            return _describe_quantity(table, cells)
    if (misfit := find_misfit(cells)) is not None:
        raise DataError(
            f"{table.path}: the label '{name}' has values that are not numbers "
            f"({misfit})",
            hint="correct these rows, or choose another column with --label COLUMN",
        )
    if task == "regression":
        raise DataError(
            f"{table.path}: the label '{name}' is not a column of numbers",
            hint="a regression predicts a number; choose another column with --label "
            "COLUMN",
        )
    if isinstance(values, LeftOut):
        raise _useless_error(table, name, values.why)
    return _describe_classes(table, values)


def _describe_quantity(table: Table, cells: Cells) -> Quantity:
    values = cells.numbers
    assert values is not None
    if cells.distinct_numbers == 1:
        raise _constant_error(table, cells.name, f"{values[0]:g}")
    if why := find_unscalable(values):
        raise _useless_error(table, cells.name, why)
    mean, deviation = float(values.mean()), float(values.std())
    return Quantity(cells.name, float(f"{mean:.4g}"), float(f"{deviation:.4g}"))


def _describe_classes(table: Table, values: Words) -> Classes:
    if len(values.words) < 2:
        raise _constant_error(table, values.name, *values.words)
    if sum(values.counts) < 2 * len(values.words):
        raise DataError(
            f"{table.path}: the label '{values.name}' has "
            f"{format_count(len(values.words))} different values in "
            f"{format_count(sum(values.counts))} rows, so most values occur only "
            "once",
            hint="a class with one row cannot be learned; choose another column with "
            "--label COLUMN",
        )
    if len(values.words) > _MAX_CLASSES:
        raise DataError(
            f"{table.path}: the label '{values.name}' has "
            f"{format_count(len(values.words))} classes, which are too many",
            hint=f"use at most {_MAX_CLASSES} classes, or choose another column with "
            "--label COLUMN",
        )
    numbered = tuple(map(str, range(len(values.words))))
    return Classes(
        values.name,
        values.words,
        values.counts,
        is_numbered=values.words == numbered,
        may_be_quantity=values.is_codes,
    )


def _useless_error(table: Table, name: str, why: str) -> DataError:
    return DataError(
        f"{table.path}: the column '{name}' cannot be predicted: {why}",
        hint="choose another column with --label COLUMN",
    )


def _constant_error(table: Table, name: str, value: str) -> DataError:
    return DataError(
        f"{table.path}: all values of the label '{name}' are {value}",
        hint="choose another column with --label COLUMN",
    )
