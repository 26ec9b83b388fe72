"""Inputs as columns of a source, and the columns that an input reads of a file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from math import prod

from msgspec import Struct

from placer.errors import DataError
from placer.plan.settings.data.sources import Source, missing_column_error
from placer.plan.settings.fields import Size, ValueName


class Range(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The least and greatest valid value of an input, and the op that requires it.

    `padding` is one more valid value, which is outside of them. `is_label` is whether the
    op compares the input with scores; `layer` is the op whose size is the number of
    scores, if one is.
    """

    low: int
    high: int
    op: ValueName
    kind: ValueName
    padding: int | None = None
    is_label: bool = False
    layer: ValueName | None = None


class Column(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An input that a source feeds: its name, its dtype, and the shape of one row.

    `limits` are for a reader. They are not in the plan, where each source has its own.
    """

    name: ValueName
    dtype: str
    shape: tuple[Size, ...]
    limits: Range | None = None

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(['batch', *map(str, self.shape)])}]"


def in_natural_order(names: Iterable[str]) -> list[str]:
    """Return the names of columns in the order in which globs select them.

    It is that of their characters, but numbers count as numbers: `x2` is before `x10`. It
    does not depend on the order of a file, so a glob means the same inputs in the files
    of training, evaluation and prediction.
    """
    return sorted(names, key=lambda name: (_NUMBER.sub(_by_value, name), name))


_NUMBER = re.compile("[0-9]+")


def _by_value(number: re.Match[str]) -> str:
    """Return the digits of a number after their count, so that texts compare as numbers."""
    digits = number[0].lstrip("0")
    return f"{len(digits):09}{digits}"


def select_columns(
    source: Source,
    column: Column,
    wanted: str | Sequence[str],
    names: Sequence[str] | None,
    features: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the columns that an input reads.

    Args:
        source: The source. A single column of some kinds may have a whole row of the
            input, whose shape is not checked.
        column: The input.
        wanted: A column name or a glob over names, or a list of them. A glob selects
            them in the order of `names`.
        names: The columns of the source `in_natural_order`, or None if they are not known
            yet: then globs are returned as they are.
        features: The features of the source, which follow its columns.

    Raises:
        DataError: A column is missing, duplicated, or selected twice, or the number of
            columns does not fit.
    """
    name, count = column.name, prod(column.shape)
    patterns = [wanted] if isinstance(wanted, str) else list(wanted)
    if names is None and any(map(is_glob, patterns)):
        return tuple(patterns)
    every = None if names is None else [*names, *features]
    columns = [c for each in patterns for c in _expand(each, every or patterns)]
    in_file, selected = Counter(every), Counter(columns)
    for each in columns:
        if names is not None and each not in in_file:
            raise missing_column_error(source.text, each, name, names, features)
        if in_file[each] > 1:
            raise duplicate_column_error(source.text, each)
        if selected[each] > 1:
            message = f"input '{name}' reads the column '{each}' twice"
            raise DataError(message, hint="list each column once")
    may_be_one = source.declaration.row_columns
    if len(columns) != count and not (may_be_one and len(columns) == 1):
        expected = "1 column" if count == 1 else f"{count} columns"
        hint = (
            f"list them, such as columns: {{{name}: [a, b]}}, or write a glob, such as"
            ' "x*"'
        )
        if any(map(is_glob, patterns)):
            hint = f"the columns that match are {', '.join(columns)}"
        raise DataError(
            f"input '{name}' is {column} and reads {expected} of {source.text}, not"
            f" {len(columns)}",
            hint=hint,
        )
    return tuple(columns)


def duplicate_column_error(source: str, column: str) -> DataError:
    """Return the error for a column whose name another column of the source has too."""
    message = f"{source} has more than one column '{column}'"
    return DataError(message, hint="rename one of them in the file")


def _expand(pattern: str, names: Sequence[str]) -> list[str]:
    """Return the columns that a name or glob selects; the pattern itself if none."""
    if pattern in names or not is_glob(pattern):
        return [pattern]
    return [name for name in names if fnmatchcase(name, pattern)] or [pattern]


def is_glob(text: str) -> bool:
    return any(character in text for character in "*?[")
