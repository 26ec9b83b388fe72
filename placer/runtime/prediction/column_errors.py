"""Explains errors about missing columns in the rows to predict."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from shlex import quote

from placer.errors import DataError, nearest
from placer.plan.plan import Plan
from placer.plan.settings.data.source import RowSource
from placer.plan.settings.data.sources import InputColumnError, list_columns


@contextmanager
def outputs_named(plan: Plan, data: RowSource) -> Iterator[None]:
    """Return a context manager that adds, to a column error, the outputs that need it."""
    try:
        yield
    except InputColumnError as error:
        names = [o.name for o in plan.outputs if error.input in o.inputs]
        needing = " and ".join(f"'{name}'" for name in names)
        raise DataError(
            f"{error.message}; {needing} depends on this input",
            hint=_missing_column_hint(error, data),
        ) from error


def _missing_column_hint(error: InputColumnError, data: RowSource) -> str | None:
    """Return a hint how to provide the missing column.

    The option `--columns` can rename the column of an input. The names of other columns,
    such as the columns that features read, are fixed in the build.
    """
    missing, columns = error.missing, error.columns
    if missing is None or not columns:
        return error.hint
    near = nearest(missing, columns)
    if (data.columns or {}).get(error.input, error.input) != missing:
        before = f"rename '{near}' to" if near else "call it"
        others = "" if near else f"{list_columns(columns)}; "
        return f"{others}{before} '{missing}' in the file: the build reads this name"
    listed = "" if near else f"{list_columns(columns)}; "
    column = near or "COLUMN"
    option = "" if "," in column else quote(f"{error.input}={column}")
    command = f"--columns {option}, or in Python " if option else "in Python "
    return f"{listed}write {command}columns={{{error.input!r}: {column!r}}}"
