"""The columns that an input reads, of sources where it may read several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase

from placer.config.sources import missing_column_error
from placer.errors import DataError


def select_columns(
    source: str,
    name: str,
    declared: str,
    count: int,
    wanted: str | Sequence[str],
    names: Sequence[str] | None,
    *,
    row_columns: bool,
) -> tuple[str, ...]:
    """Return the columns that an input reads.

    Args:
        source: The source, for error messages.
        name: The name of the input.
        declared: The type of the input, for error messages.
        count: The number of values in a row of the input.
        wanted: A column name or a glob over names, or a list of them. A glob selects
            columns in the order of the file.
        names: The columns of the file, or None if they are not known yet: then globs
            are returned as they are.
        row_columns: Whether a single column may have a whole row of the input. Its
            shape is not checked.

    Raises:
        DataError: A column is missing, duplicated, or selected twice, or the number of
            columns does not fit.
    """
    patterns = [wanted] if isinstance(wanted, str) else list(wanted)
    if names is None and any(map(_is_glob, patterns)):
        return tuple(patterns)
    columns = [c for each in patterns for c in _expand(each, names or patterns)]
    in_file, selected = Counter(names), Counter(columns)
    for column in columns:
        if names is not None and column not in in_file:
            raise missing_column_error(source, column, name, tuple(names))
        if in_file[column] > 1:
            message = f"{source} has more than one column '{column}'"
            raise DataError(
                message, hint="give each column its own name: csv: {header}"
            )
        if selected[column] > 1:
            message = f"input '{name}' reads the column '{column}' twice"
            raise DataError(message, hint="list each column once")
    if len(columns) != count and not (row_columns and len(columns) == 1):
        expected = "1 column" if count == 1 else f"{count} columns"
        raise DataError(
            f"input '{name}' is {declared} and reads {expected} of {source}, not"
            f" {len(columns)}",
            hint=f"list them, such as columns: {{{name}: [a, b]}}, or write a glob,"
            ' such as "x*"',
        )
    return tuple(columns)


def _expand(pattern: str, names: Sequence[str]) -> list[str]:
    """Return the columns that a name or glob selects; the pattern itself if none."""
    if pattern in names or not _is_glob(pattern):
        return [pattern]
    return [name for name in names if fnmatchcase(name, pattern)] or [pattern]


def _is_glob(text: str) -> bool:
    return any(character in text for character in "*?[")
