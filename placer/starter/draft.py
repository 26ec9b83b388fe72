"""Choose what a first model of a table has: its label, its inputs and its size."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from placer.errors import DataError, did_you_mean
from placer.front.yaml_text import one_line
from placer.report.numbers import format_count
from placer.spec.names import is_name
from placer.starter.column import (
    MAX_CODES,
    LeftOut,
    Numbers,
    Words,
    count_values,
    describe_column,
    read_numbers,
)
from placer.starter.table import Table

TASKS: Final = ("classification", "regression")
LEAST_ROWS: Final = 10
_FEW_ROWS: Final = 2000
_LABELS: Final = ("label", "target", "class", "y")
_MAX_CLASSES: Final = 100
_LEAST_BATCH, _MOST_BATCH = 8, 256
_STEPS: Final = 1200
_LEAST_EPOCHS, _MOST_EPOCHS = 5, 40


@dataclass(frozen=True, slots=True)
class Classes:
    """A label with classes.

    Attributes:
        name: the column.
        words: the classes.
        counts: how many rows have each class.
        is_numbered: whether the file has the numbers of the classes, from 0.
        may_be_quantity: whether the classes are numbers.
    """

    name: str
    words: tuple[str, ...]
    counts: tuple[int, ...]
    is_numbered: bool
    may_be_quantity: bool


@dataclass(frozen=True, slots=True)
class Quantity:
    """A label that is a number, with the mean and the standard deviation of it."""

    name: str
    mean: float
    deviation: float


Label = Classes | Quantity


@dataclass(frozen=True, slots=True)
class Draft:
    """All that a spec for a table depends on.

    Attributes:
        table: the table.
        label: what the model predicts.
        is_guess: whether the user has not named the label.
        numbers: the columns of numbers.
        words: the columns of words.
        left_out: the columns that the model does not use.
        batch: the rows of a batch.
        epochs: the number of epochs.
    """

    table: Table
    label: Label
    is_guess: bool
    numbers: tuple[Numbers, ...]
    words: tuple[Words, ...]
    left_out: tuple[LeftOut, ...]
    batch: int
    epochs: int

    @property
    def momentum(self) -> float:
        """The weight of the old value in the averages of `batch_norm`: at most 1e-4 of
        the initial values is left after an epoch, if that takes 14 steps or more."""
        rows = self.table.rows - self.table.rows // 5
        return min(0.95, max(0.5, round(10 ** (-4 / (rows // self.batch)), 2)))

    @property
    def has_few_rows(self) -> bool:
        """Whether a large model would learn the rows by heart."""
        return self.table.rows < _FEW_ROWS


def draft_model(table: Table, label: str | None, task: str | None) -> Draft:
    """Choose the label, the inputs and the size of a model.

    Args:
        table: the table.
        label: the column to predict. By default the one named `label`, `target`,
            `class` or `y`, else the last.
        task: one of `TASKS`, by default what the label's values suggest.

    Raises:
        DataError: if the table has no such column, or no column to learn from, or if
            its label has missing values or a single value.
    """
    if not table.columns:
        raise DataError(f"{table.path} has no columns")
    if table.read < LEAST_ROWS:
        raise DataError(
            f"{table.path} has {format_count(table.read)} rows",
            hint=f"a model to train and to evaluate needs at least {LEAST_ROWS}",
        )
    name = _find_label(table, label)
    chosen = _describe_label(table, name, task)
    numbers: list[Numbers] = []
    words: list[Words] = []
    left_out: list[LeftOut] = []
    for each in table.columns:
        if each == name:
            continue
        column = describe_column(table, each)
        if isinstance(column, Numbers):
            numbers.append(column)
        elif isinstance(column, Words):
            words.append(column)
        else:
            left_out.append(column)
    if not numbers and not words:
        reasons = "; ".join(
            f"{each.name or '(no name)'}: {each.why}" for each in left_out
        )
        raise DataError(
            f"{table.path} has no column to predict '{name}' from",
            hint=reasons or "it has no other column",
        )
    rows = table.rows - table.rows // 5
    batch = _LEAST_BATCH
    while batch * 2 <= min(_MOST_BATCH, rows // 8):
        batch *= 2
    epochs = round(_STEPS / (rows // batch))
    return Draft(
        table,
        chosen,
        label is None,
        tuple(numbers),
        tuple(words),
        tuple(left_out),
        batch,
        min(max(epochs, _LEAST_EPOCHS), _MOST_EPOCHS),
    )


def _find_label(table: Table, label: str | None) -> str:
    names = [name for name in table.columns if name and name not in table.repeated]
    if label is not None:
        if label in table.repeated:
            raise DataError(
                f"{table.path} has more than one column '{label}'",
                hint="give each column a name of its own",
            )
        if label not in names:
            raise DataError(
                f"{table.path} has no column '{label}'", hint=did_you_mean(label, names)
            )
        return label
    if not names:
        raise DataError(f"{table.path} has no column with a name of its own")
    usual = [name for name in names if name.lower() in _LABELS]
    return usual[0] if len(usual) == 1 else names[-1]


def _describe_label(table: Table, name: str, task: str | None) -> Label:
    numbers = read_numbers(table, name)
    values = count_values(table, name)
    missing = numbers.missing if numbers else 0
    if isinstance(values, Words):
        missing = values.missing
    if missing:
        raise DataError(
            f"{table.path}: {format_count(missing)} rows have no value in the column"
            f" '{name}', which is to be predicted",
            hint="remove these rows, or name another column: --label COLUMN",
        )
    if numbers is not None and task != "classification":
        distinct = np.unique(numbers.present)
        few = len(distinct) <= MAX_CODES and bool((distinct % 1 == 0).all())
        if task == "regression" or not few or isinstance(values, LeftOut):
            return _describe_quantity(table, name, numbers)
    if task == "regression":
        raise DataError(
            f"{table.path}: the column '{name}' holds no numbers",
            hint="a regression predicts a number: name another column with --label",
        )
    if isinstance(values, LeftOut):
        raise DataError(
            f"{table.path}: the column '{name}' cannot be predicted: {values.why}",
            hint="name another column: --label COLUMN",
        )
    return _describe_classes(table, values)


def _describe_quantity(table: Table, name: str, numbers: Numbers) -> Quantity:
    deviation = float(numbers.present.std())
    if deviation == 0 or not np.isfinite(deviation):
        raise _constant_error(table, name, f"{numbers.present[0]:g}")
    mean = float(numbers.present.mean())
    return Quantity(name, float(f"{mean:.4g}"), float(f"{deviation:.4g}"))


def _describe_classes(table: Table, values: Words) -> Classes:
    if len(values.words) < 2:
        raise _constant_error(table, values.name, *values.words)
    if len(values.words) > _MAX_CLASSES:
        raise DataError(
            f"{table.path}: the column '{values.name}' has"
            f" {format_count(len(values.words))} different values, which are too many"
            " classes",
            hint=f"a classification has at most {_MAX_CLASSES} here: name another"
            " column with --label",
        )
    numbered = tuple(map(str, range(len(values.words))))
    return Classes(
        values.name,
        values.words,
        values.counts,
        is_numbered=values.words == numbered,
        may_be_quantity=values.is_codes,
    )


def _constant_error(table: Table, name: str, value: str) -> DataError:
    return DataError(
        f"{table.path}: all values of the column '{name}' are {value}",
        hint="name another column: --label COLUMN",
    )


def name_inputs(draft: Draft, taken: set[str]) -> Mapping[str, str]:
    """Return the input for each column of words, and for the label, by column.

    An input has the name of its column, with `_` for characters that names do not
    have. `taken` are names that an input must not have.
    """
    used, names = {name.lower() for name in taken}, {}
    for column in (draft.label.name, *(each.name for each in draft.words)):
        # A path would lose what follows a dot.
        plain = re.sub(r"[^A-Za-z0-9]+", "_", column).strip("_")[:40]
        is_plain = is_name(plain) and one_line(plain) == plain  # `true` is not
        first = name = plain if is_plain else f"column_{plain}".strip("_")
        number = 2
        while name.lower() in used or f"{name}_vector".lower() in used:
            name, number = f"{first}_{number}", number + 1
        used |= {name.lower(), f"{name}_vector".lower()}
        names[column] = name
    return names
