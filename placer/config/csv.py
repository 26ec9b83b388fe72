"""How the text of a `csv:` source is read, and which of its columns feed an input.

The rows themselves are read by `placer.readers.csv_rows`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct

from placer.config.sources import no_column
from placer.errors import DataError, did_you_mean

T = TypeVar("T")

MISSING = frozenset({"", "?", "NA", "N/A", "NaN", "nan", "NULL", "null"})
"""What stands in a column of numbers where there is none."""

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
    """How the text of a csv: source is read; where columns are keys, the first fits."""

    header: Annotated[
        list[str] | None, _doc("names of the columns; the first row has them otherwise")
    ] = None
    delimiter: Annotated[str, _doc("the character between cells")] = ","
    comment: Annotated[str | None, _doc("lines that begin so are left out")] = None
    vocabulary: Annotated[
        dict[str, Any],
        Meta(
            description="the words of a column: a list, whose index is read, or a"
            " mapping from word to number",
            extra_json_schema=_WORDS,
        ),
    ] = {}
    unknown: Annotated[
        dict[str, int], _doc("the number of a word that the vocabulary lacks")
    ] = {}
    missing: Annotated[
        dict[str, float], _doc("the number where a column of numbers has none")
    ] = {}


def check(csv: Csv) -> tuple[str, str, str | None] | None:
    """What is wrong with `csv` whatever the file holds: the key, why, and a hint."""
    if len(csv.delimiter) != 1 or csv.delimiter in '"\r\n':
        hint = 'such as ";", or "\\t" for a tab'
        return "delimiter", f"'delimiter' is one character, not {csv.delimiter!r}", hint
    if csv.comment == "":
        return "comment", "'comment' is empty: every line begins so", None
    names = csv.header
    if names is not None:
        if not names:
            return "header", "'header' names no column", None
        twice = next((n for n, count in Counter(names).items() if count > 1), None)
        if twice is not None:
            return "header", f"'header' names the column '{twice}' twice", None
    return None


def first_fit(patterns: Mapping[str, T], column: str) -> T | None:
    """What holds for a column: the value of the first name or glob that fits it."""
    for pattern, value in patterns.items():
        if _fits(column, pattern):
            return value
    return None


def check_pattern(source: str, pattern: str, names: Sequence[str]) -> None:
    """DataError unless some column fits a key of `csv`."""
    if not any(_fits(name, pattern) for name in names):
        hint = did_you_mean(pattern, names)
        raise DataError(f"{source} has no column '{pattern}'", hint=hint)


def columns_of(
    source: str,
    name: str,
    declared: str,
    count: int,
    wanted: str | Sequence[str],
    names: Sequence[str] | None,
) -> tuple[str, ...]:
    """The columns that feed input `name`, whose rows hold `count` values.

    `wanted` is a column's name or a glob over names, or a list of them; a glob takes
    columns in the file's order. `names` are the file's columns; where they are not
    known yet, globs stay as they are. `declared` is the input's type. DataError where
    a column is not there or is taken twice, or where there are more or fewer than
    `count`.
    """
    asked = [wanted] if isinstance(wanted, str) else list(wanted)
    if names is None and any(map(_is_glob, asked)):
        return tuple(asked)
    found = [c for each in asked for c in _named(each, names or asked)]
    there, taken = Counter(names), Counter(found)
    for column in found:
        if names is not None and column not in there:
            raise no_column(source, column, name, tuple(names))
        if there[column] > 1:
            message = f"{source} has more than one column '{column}'"
            raise DataError(message, hint="give them names of their own: csv: {header}")
        if taken[column] > 1:
            message = f"input '{name}' takes the column '{column}' twice"
            raise DataError(message, hint="a column stands once for an input")
    if len(found) != count:
        columns = "1 column" if count == 1 else f"{count} columns"
        raise DataError(
            f"input '{name}' is {declared} and takes {columns} of {source}, not"
            f" {len(found)}",
            hint=f'list them, as columns: {{{name}: [a, b]}}, or write a glob, as "x*"',
        )
    return tuple(found)


def _named(asked: str, names: Sequence[str]) -> list[str]:
    """The columns that a name or a glob takes; a name that none has stays."""
    if asked in names or not _is_glob(asked):
        return [asked]
    return [name for name in names if fnmatchcase(name, asked)] or [asked]


def _is_glob(text: str) -> bool:
    return any(sign in text for sign in "*?[")


def _fits(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)
