"""The options of a `csv:` source, and the columns that each input reads.

`placer.readers.csv_rows` reads the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct

from placer.config.sources import missing_column_error
from placer.errors import DataError, did_you_mean

T = TypeVar("T")

MISSING = frozenset({"", "?", "NA", "N/A", "NaN", "nan", "NULL", "null"})
"""The cells that mean a missing number."""

_WORDS = {
    "additionalProperties": {
        "anyOf": [
            {"type": "array", "items": {"type": "string"}},
            {"type": "object", "additionalProperties": {"type": "integer"}},
        ]
    }
}


def _doc(text: str) -> Meta:
    return Meta(description=text)


class Csv(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of a csv: source. Keys may be globs; the first that matches applies."""

    header: Annotated[
        list[str] | None,
        _doc("names of the columns; by default those in the first row"),
    ] = None
    delimiter: Annotated[str, _doc("the character between cells")] = ","
    comment: Annotated[str | None, _doc("lines that start with this are skipped")] = (
        None
    )
    vocabulary: Annotated[
        dict[str, Any],
        Meta(
            description="the words of a column: a list, whose indices are the values,"
            " or a mapping from word to number",
            extra_json_schema=_WORDS,
        ),
    ] = {}
    unknown: Annotated[
        dict[str, int], _doc("the number of a word that is not in the vocabulary")
    ] = {}
    missing: Annotated[
        dict[str, float], _doc("the number to use for a missing number")
    ] = {}


def check(csv: Csv) -> tuple[str, str, str | None] | None:
    """Check options without reading the file.

    Returns None, or the key that is wrong, the message and a hint.
    """
    if len(csv.delimiter) != 1 or csv.delimiter in '"\r\n':
        hint = 'such as ";", or "\\t" for a tab'
        return (
            "delimiter",
            f"'delimiter' must be one character, not {csv.delimiter!r}",
            hint,
        )
    if csv.comment == "":
        return "comment", "'comment' is empty: every line starts with it", None
    names = csv.header
    if names is not None:
        if not names:
            return "header", "'header' names no column", None
        duplicate = next((n for n, count in Counter(names).items() if count > 1), None)
        if duplicate is not None:
            return "header", f"'header' names the column '{duplicate}' twice", None
    return None


def first_match(patterns: Mapping[str, T], column: str) -> T | None:
    """Return the value of the first name or glob that matches `column`."""
    for pattern, value in patterns.items():
        if _matches(column, pattern):
            return value
    return None


def check_pattern(source: str, pattern: str, names: Sequence[str]) -> None:
    """Raise DataError if `pattern`, a key of `csv`, matches no column."""
    if not any(_matches(name, pattern) for name in names):
        hint = did_you_mean(pattern, names)
        raise DataError(f"{source} has no column '{pattern}'", hint=hint)


def select_columns(
    source: str,
    name: str,
    declared: str,
    count: int,
    wanted: str | Sequence[str],
    names: Sequence[str] | None,
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

    Raises:
        DataError: A column is missing, duplicated, or selected twice, or the number of
            columns is not `count`.
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
    if len(columns) != count:
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


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)
