"""The inputs of a model, and the columns of a source that feed each of them."""

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
    """The valid values of an input that an op uses as indices.

    Attributes:
        low: the least valid value.
        high: the greatest valid value.
        op: the name of the op.
        kind: the kind of the op.
        padding: one additional valid value outside the range.
        is_label: whether the op compares the input with scores.
        layer: the op whose size sets the number of scores, if any.
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

    `limits` are set only for readers; in a plan, each source has its own.
    """

    name: ValueName
    dtype: str
    shape: tuple[Size, ...]
    limits: Range | None = None

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(['batch', *map(str, self.shape)])}]"


def in_natural_order(names: Iterable[str]) -> list[str]:
    """Sort column names for globs, treating digits as numbers: `x2` before `x10`.

    The order of columns in a file does not matter, so a glob selects the same inputs in
    training, evaluation and prediction files.
    """
    return sorted(names, key=natural_key)


def natural_key(name: str) -> tuple[str, str]:
    """Return the key by which names are in natural order."""
    return _NUMBER.sub(_by_value, name), name


_NUMBER = re.compile("[0-9]+")


def _by_value(number: re.Match[str]) -> str:
    """Prefix the digits with their count, so that texts sort by number."""
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
        source: The source. In some kinds, a single column may hold whole rows of the
            input; their shape is not checked here.
        column: The input.
        wanted: A column name, a glob, or a list of them. A glob selects columns in the
            order of `names`.
        names: The columns of the source `in_natural_order`. If None, globs are returned
            unchanged.
        features: The features of the source, which follow its columns.

    Raises:
        DataError: A column is missing, duplicated or selected twice, or the number of
            columns is wrong.
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
            f'list them, as columns: {{{name}: [a, b]}}, or write a glob such as "x*"'
        )
        if any(map(is_glob, patterns)):
            hint = f"the glob matches {', '.join(columns)}"
        raise DataError(
            f"input '{name}' is {column} and needs {expected} of {source.text}, not"
            f" {len(columns)}",
            hint=hint,
        )
    return tuple(columns)


def duplicate_column_error(source: str, column: str) -> DataError:
    """Return the error for a column name that occurs twice in a source."""
    message = f"{source} has several columns named '{column}'"
    return DataError(message, hint="rename one of them in the file")


def _expand(pattern: str, names: Sequence[str]) -> list[str]:
    """Return the columns that a name or glob selects, else the pattern itself."""
    if pattern in names or not is_glob(pattern):
        return [pattern]
    return [name for name in names if fnmatchcase(name, pattern)] or [pattern]


def is_glob(text: str) -> bool:
    return any(character in text for character in "*?[")
