"""Chooses the label, the inputs and the size of a first model for a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from placer.command.starter.column import Dates, Ids, LeftOut, Numbers, Words
from placer.command.starter.inference import describe_column
from placer.command.starter.label import Label, describe_label, find_label
from placer.command.starter.table import Table
from placer.errors import DataError, did_you_mean
from placer.report.numbers import format_count

LEAST_ROWS: Final = 10
_FEW_ROWS: Final = 2000
_LEAST_BATCH, _MOST_BATCH = 8, 256
_STEPS: Final = 1200
_LEAST_EPOCHS, _MOST_EPOCHS = 5, 40
_SMALL = {"width1": 32, "width2": 16, "dropout": 0.2}
_SMALL |= {"learning_rate": 0.003, "weight_decay": 0.5}
_LARGE = {"width1": 128, "width2": 64, "dropout": 0.3}
_LARGE |= {"learning_rate": 0.002, "weight_decay": 0.1}


@dataclass(frozen=True, slots=True)
class Draft:
    """The choices for a spec of a table.

    Attributes:
        table: the table.
        label: the label that the model predicts.
        is_guess: True if the user did not name the label.
        numbers: the columns of numbers.
        words: the columns of words.
        ids: the columns of ids.
        dates: the columns of dates.
        left_out: the columns that the model does not use.
        batch: the rows of a batch.
        epochs: the number of epochs.
    """

    table: Table
    label: Label
    is_guess: bool
    numbers: tuple[Numbers, ...]
    words: tuple[Words, ...]
    ids: tuple[Ids, ...]
    dates: tuple[Dates, ...]
    left_out: tuple[LeftOut, ...]
    batch: int
    epochs: int

    @property
    def has_few_rows(self) -> bool:
        """True if a large model would memorize the rows."""
        return self.table.rows < _FEW_ROWS

    @property
    def size(self) -> dict[str, float]:
        """The sizes of the hidden layers and the hyperparameters, by name."""
        return _SMALL if self.has_few_rows else _LARGE


def draft_model(
    table: Table, label: str | None, task: str | None, ids: Sequence[str] = ()
) -> Draft:
    """Choose the label, the inputs and the size of a model.

    Args:
        table: the table.
        label: the column to predict. Default: the column named `label`, `target`, `class`
            or `y`, or else the last one.
        task: one of `TASKS`. Default: the task that fits the values of the label.
        ids: the columns with ids. Other columns of ids are recognized by their names.

    Raises:
        DataError: if the table lacks one of the columns, if no column is left to learn
            from, or if the label has missing values or a single value.
    """
    if not table.columns:
        raise DataError(f"{table.path} has no columns")
    if table.read < LEAST_ROWS:
        raise DataError(
            f"{table.path} has {format_count(table.read)} rows",
            hint=f"training and evaluation need at least {LEAST_ROWS}",
        )
    name = find_label(table, label)
    if len(table.columns) == 1:
        raise DataError(
            f"{table.path} has no column to predict '{name}' from",
            hint=f"'{name}' is the only column",
        )
    chosen = describe_label(table, name, task, is_guess=label is None)
    for each in ids:
        _check_ids(table, each, name)
    found = [
        describe_column(table, each, is_id=each in ids)
        for each in table.columns
        if each != name
    ]
    left_out = tuple(each for each in found if isinstance(each, LeftOut))
    if len(left_out) == len(found):
        reasons = "; ".join(
            f"{each.name or '(no name)'}: {each.why}" for each in left_out
        )
        raise DataError(
            f"{table.path} has no column to predict '{name}' from",
            hint=reasons,
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
        tuple(each for each in found if isinstance(each, Numbers)),
        tuple(each for each in found if isinstance(each, Words)),
        tuple(each for each in found if isinstance(each, Ids)),
        tuple(each for each in found if isinstance(each, Dates)),
        left_out,
        batch,
        min(max(epochs, _LEAST_EPOCHS), _MOST_EPOCHS),
    )


def _check_ids(table: Table, column: str, label: str) -> None:
    if column not in table.columns:
        hint = did_you_mean(column, table.columns)
        raise DataError(f"{table.path} has no column '{column}'", hint=hint)
    if column == label:
        raise DataError(
            f"the column '{column}' is the label, so it cannot be an id",
            hint="remove it from --ids, or choose another label with --label",
        )
