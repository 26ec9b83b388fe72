"""Options of `csv:`, `parquet:` and `python:` sources for converting cells to numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct

from placer.errors import did_you_mean
from placer.plan.settings.data.columns import is_glob
from placer.plan.settings.data.features import Features
from placer.plan.settings.data.missing import NO_MARKERS, Marker, Markers, make_markers
from placer.plan.settings.data.sources import Source, SourceError
from placer.plan.settings.fields import doc
from placer.plan.settings.mistake import Mistake, refuse

T = TypeVar("T")

_WORDS = {
    "additionalProperties": {
        "anyOf": [
            {"type": "array", "items": {"type": "string"}},
            {"type": "object", "additionalProperties": {"type": "integer"}},
        ]
    }
}


class Cells(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """How words and missing cells become numbers, by column.

    Keys may be globs; the first match applies.
    """

    vocabulary: Annotated[
        dict[str, Any],
        Meta(
            description="the words of a column: a list (a word's value is its index), or"
            " a mapping from word to number",
            extra_json_schema=_WORDS,
        ),
    ] = {}
    unknown: Annotated[
        dict[str, int], doc("the number for a word outside the vocabulary")
    ] = {}
    missing: Annotated[
        dict[str, float], doc("the number to use for a missing number or date")
    ] = {}
    missing_values: Annotated[
        list[Marker] | dict[str, list[Marker]],
        doc(
            "additional texts and numbers that mean a missing value: a list for all"
            " columns, or a mapping from column to list"
        ),
    ] = []

    def markers(self, column: str) -> Markers:
        """Return the `missing_values` of a column."""
        listed = self.missing_values
        if isinstance(listed, Mapping):
            listed = first_match(listed, column) or []
        return make_markers(listed) if listed else NO_MARKERS

    @property
    def patterns(self) -> dict[str, tuple[str, ...]]:
        """The columns and globs that each option lists."""
        options = ("vocabulary", "unknown", "missing", "missing_values")
        named = {key: getattr(self, key) for key in options}
        return {
            key: tuple(columns)
            for key, columns in named.items()
            if isinstance(columns, Mapping)
        }

    def words(self, column: str) -> Mapping[str, int] | None:
        """Return the number of each word of a column; None if it has no vocabulary."""
        words = first_match(self.vocabulary, column)
        if words is None or isinstance(words, Mapping):
            return words
        return {word: index for index, word in enumerate(words)}


class Csv(Cells, frozen=True, kw_only=True):
    """Options of a csv: source."""

    header: Annotated[
        list[str] | None, doc("column names; by default, the first row has the names")
    ] = None
    delimiter: Annotated[str, doc("the character that separates cells")] = ","
    comment: Annotated[str | None, doc("skip lines that start with this text")] = None

    def __post_init__(self) -> None:
        """Raise MistakeError if an option is wrong."""
        refuse(self._find_mistake())

    def _find_mistake(self) -> Mistake | None:
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n\0':
            hint = 'such as ";", or "\\t" for a tab'
            is_one = len(self.delimiter) == 1
            form = (
                "one character, but no quote, end of line or NUL"
                if is_one
                else "one character"
            )
            message = f"'delimiter' must be {form}, not {self.delimiter!r}"
            return Mistake(("delimiter",), message, hint)
        if self.comment and not {*self.comment}.isdisjoint("\r\n"):
            message = (
                f"'comment' must not contain a line break, as {self.comment!r} does"
            )
            return Mistake(("comment",), message, "write only the start of the line")
        if self.comment == "":
            message = "'comment' is empty: every line starts with it"
            return Mistake(("comment",), message, "leave 'comment' out")
        if self.header == []:
            return Mistake(("header",), "'header' names no column")
        names = self.header or []
        for index, name in enumerate(names):
            if name in names[:index]:
                message = f"'header' names the column '{name}' twice"
                return Mistake(("header", index), message)
        return None


OPTIONS: Mapping[str, type[Cells]] = {"csv": Csv, "parquet": Cells, "python": Cells}
"""The options of each kind of source, which `data.train` has under the kind's name."""


def first_match(patterns: Mapping[str, T], column: str) -> T | None:
    """Return the value of the first name or glob that matches `column`."""
    for pattern, value in patterns.items():
        if _matches(column, pattern):
            return value
    return None


def _find_idle(
    form: Cells, names: Sequence[str] | None, operands: Collection[str] = ()
) -> Mistake | None:
    """Return the first option entry without effect, or None."""
    # `names`: the columns of the source; if None, globs are not checked. `operands`: the
    # number and date columns, or globs, that features use. `missing` applies to these even
    # with a vocabulary.
    for key, patterns in form.patterns.items():
        entries = dict.fromkeys(patterns)
        for entry in entries:
            if (
                names is None
                and is_glob(entry)
                and (form.vocabulary or key != "unknown")
            ):
                continue
            matching = [n for n in names or (entry,) if _matches(n, entry)]
            own = [n for n in matching if _first(entries, n) == entry]
            if matching and not own:
                first = _first(entries, matching[0])
                message = f"'{entry}' of '{key}' has no effect: '{first}' comes first"
                hint = f"write '{entry}' before '{first}'"
                return Mistake((key, entry), message, hint, of_key=True)
            if key == "missing_values" and own and not form.markers(own[0]):
                later = list(entries)[list(entries).index(entry) + 1 :]
                if any(_matches(n, each) for n in own for each in later):
                    continue  # a later entry has values for these columns
                message = (
                    f"'{entry}' of 'missing_values' has no effect: its list is empty"
                )
                hint = "list values, or leave the entry out"
                return Mistake((key, entry), message, hint, of_key=True)
            if key == "unknown" and own and not any(map(form.words, own)):
                message = f"'unknown' of '{entry}' has no effect without a vocabulary"
                hint = "add its words to 'vocabulary', or use 'missing' for numbers"
                return Mistake((key, entry), message, hint, of_key=True)
            if key == "missing" and own and all(map(form.words, own)):
                if any(_matches(n, each) for n in own for each in operands):
                    continue
                message = (
                    f"'missing' of '{entry}' has no effect: it applies to numbers, but"
                    " the column has a vocabulary"
                )
                hint = (
                    f"write unknown: {{{entry}: N}}, because an empty cell counts as a word;"
                    " if the column is the label, remove rows with an empty cell"
                )
                return Mistake((key, entry), message, hint, of_key=True)
    return None


def check_list_column(source: Source, form: Cells, column: str) -> None:
    """Raise SourceError if `missing` or `missing_values` names a column of lists.

    Options do not apply to lists. A glob may match such columns.
    """
    for key in ("missing", "missing_values"):
        if column in form.patterns.get(key, ()):
            raise SourceError(
                (source.kind, key, column),
                f"{source.text}: '{key}' of column '{column}' has no effect: its cells"
                " are lists",
                f"leave '{key}' out, which is for columns with one number per row, and"
                " write the replacement numbers into the lists",
            )


def check_effects(
    source: Source, form: Cells, names: Sequence[str], features: Features | None
) -> None:
    """Raise SourceError for an option entry that matches no column or has no effect."""
    for error in find_effectless(source, form, names, features):
        raise error


def find_effectless(
    source: Source, form: Cells, names: Sequence[str] | None, features: Features | None
) -> list[SourceError]:
    """Return the errors for option entries that match no column.

    If all entries match, return the error for the first entry without effect.

    Args:
        source: the source.
        form: the options of the source.
        names: the columns of the source; None if unknown.
        features: the features of the source.
    """
    errors = [
        SourceError(
            (source.kind, option, pattern),
            f"{source.text} has no column '{pattern}'",
            did_you_mean(pattern, names),
            of_key=True,
        )
        for option, patterns in form.patterns.items()
        for pattern in patterns
        if names is not None and not any(_matches(name, pattern) for name in names)
    ]
    numbers = {n: each for n, each in (features or {}).items() if not each.reads_text}
    if not errors and (idle := _find_idle(form, names, operands_of(numbers))):
        path, message = (source.kind, *idle.path), f"{source.text}: {idle.message}"
        errors.append(SourceError(path, message, idle.hint, of_key=True))
    return errors


def operands_of(features: Features | None) -> list[str]:
    """Return the columns, or globs, that features are computed from."""
    return [each for one in (features or {}).values() for each in one.operands]


def _first(patterns: Mapping[str, Any], column: str) -> str | None:
    """Return the first name or glob that matches `column`."""
    return next((each for each in patterns if _matches(column, each)), None)


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)
