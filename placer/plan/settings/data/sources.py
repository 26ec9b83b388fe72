"""Sources of rows as written in a spec, `KIND:PATH`, and the column of each input.

`placer.readers` reads the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from placer.errors import DataError, did_you_mean
from placer.place.types import FLOATS
from placer.plan.settings.mistake import Mistake

SKLEARN: dict[str, tuple[str, ...]] = {
    "breast_cancer": ("data", "target"),
    "diabetes": ("data", "target"),
    "digits": ("data", "target", "images"),
    "iris": ("data", "target"),
    "linnerud": ("data", "target"),
    "wine": ("data", "target"),
}
"""The bundled data sets of scikit-learn and their columns."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of source.

    CONTRIBUTING.md lists all steps to add a kind.

    Attributes:
        form: the syntax of a source, KIND:PATH.
        reader: the module of `placer.readers` whose `read` function reads the source.
        check_path: called with the text and the path of a source; raises DataError for an
            invalid path.
        splits: whether the kind supports the splits `train` and `test`.
        column_lists: whether a list or a glob of columns can feed an input. Such kinds
            also support features and column options.
        row_columns: whether one column can hold whole rows of an input.
        pieces: whether readers can load the source in pieces, for a shuffle window.
        suffixes: the file name suffixes; empty if the path is not a file. Predictions
            need a file for their key columns.
    """

    form: str
    reader: str
    check_path: Callable[[str, str], None]
    splits: bool = False
    column_lists: bool = False
    row_columns: bool = True
    pieces: bool = False
    suffixes: tuple[str, ...] = ()

    @property
    def is_file(self) -> bool:
        """Whether the path of a source is a file."""
        return bool(self.suffixes)


def _check_file(text: str, path: str) -> None:
    if not path:
        form = KINDS[text.partition(":")[0]].form
        raise DataError(f"'{text}' names no file", hint=f"write {form}")


def _check_function(text: str, path: str) -> None:
    parts = path.split(":")
    if len(parts) != 2 or not all(part.isidentifier() for part in parts):
        raise DataError(
            f"'{text}' does not name a module and a function",
            hint=f"write {KINDS['python'].form}, with MODULE.py next to the spec",
        )


def _check_data_set(text: str, path: str) -> None:
    if path not in SKLEARN:
        raise DataError(
            f"scikit-learn has no bundled data set '{path}'",
            hint=did_you_mean(path, SKLEARN),
        )


KINDS = {
    "csv": Kind(
        "csv:PATH",
        "csv_rows",
        _check_file,
        splits=True,
        column_lists=True,
        row_columns=False,
        pieces=True,
        suffixes=(".csv", ".csv.gz"),
    ),
    "npz": Kind("npz:PATH", "npz", _check_file, suffixes=(".npz",)),
    "parquet": Kind(
        "parquet:PATH",
        "parquet",
        _check_file,
        splits=True,
        column_lists=True,
        pieces=True,
        suffixes=(".parquet",),
    ),
    "python": Kind(
        "python:MODULE:FUNCTION", "python_rows", _check_function, column_lists=True
    ),
    "sklearn": Kind("sklearn:NAME", "sklearn_sets", _check_data_set, splits=True),
}
"""The kinds of sources, by the text before the colon in a spec."""


def _list_kinds(has: Callable[[Kind], bool]) -> str:
    *most, last = (f"{name}:" for name, kind in KINDS.items() if has(kind))
    return f"{', '.join(most)} and {last}"


WITH_SPLITS = _list_kinds(lambda kind: kind.splits)
"""The kinds with splits, as text for messages."""
WITH_COLUMN_LISTS = _list_kinds(lambda kind: kind.column_lists)
"""The kinds with column lists, as text for messages."""
WITH_PIECES = _list_kinds(lambda kind: kind.pieces)
"""The kinds that readers can load in pieces, as text for messages."""
WITH_FILES = _list_kinds(lambda kind: kind.is_file)
"""The kinds whose sources are files, as text for messages."""

POSITION = "batch.position"
"""An input from the runtime: uint32[batch, 2], the step and the row's number in the global
batch."""

SPLITS = ("train", "test")

ColumnMap = dict[str, str | list[str]]
"""The column of each input; a list of columns for kinds with `column_lists`."""


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed source.

    Attributes:
        text: `KIND:PATH` as written in the spec.
        kind: a key of `KINDS`.
        path: the name of a data set, the path of a file, or MODULE:FUNCTION.
    """

    text: str
    kind: str
    path: str

    @classmethod
    def parse(cls, text: str) -> Source:
        """Parse the text of a source, such as `sklearn:digits`.

        Raises DataError for an unknown kind or an invalid path.
        """
        name, colon, path = text.partition(":")
        forms = ", ".join(kind.form for kind in KINDS.values())
        if not colon:
            raise DataError(f"'{text}' is not a source", hint=f"write one of: {forms}")
        if name not in KINDS:
            raise DataError(
                f"unknown kind of source '{name}' in '{text}'",
                hint=did_you_mean(name, KINDS),
            )
        KINDS[name].check_path(text, path)
        return cls(text, name, path)

    @property
    def declaration(self) -> Kind:
        """The declaration of the kind."""
        return KINDS[self.kind]


def check_split(source: Source, split: str | None) -> None:
    """Raise SourceError if `source` lacks the split. None is always valid."""
    if split is None:
        return
    if not source.declaration.splits:
        raise SourceError(
            ("split",),
            f"'split' works with {WITH_SPLITS} sources, not with {source.text}",
            "choose the rows in the source itself, and leave 'split' out",
            of_key=True,
        )
    if split not in SPLITS:
        hint = did_you_mean(split, SPLITS)
        raise SourceError(("split",), f"unknown split '{split}'", hint)


class SourceError(DataError):
    """A source does not fit a key of `data.train` or `data.eval`.

    The path of `mistake` leads to the key, as in `("csv", "vocabulary", "color")`.
    """

    def __init__(
        self,
        path: tuple[str | int, ...],
        message: str,
        hint: str | None = None,
        *,
        of_key: bool = False,
    ) -> None:
        super().__init__(message, hint=hint)
        self.mistake = Mistake(path, message, hint, of_key)


class InputColumnError(SourceError):
    """The column of one input is wrong.

    Attributes:
        input: the name of the input.
        missing: the column that the source lacks, if any.
        columns: the columns that the source has.
    """

    def __init__(
        self,
        input: str,
        message: str,
        hint: str | None,
        *,
        missing: str | None = None,
        columns: tuple[str, ...] = (),
        of_key: bool = False,
    ) -> None:
        super().__init__(("columns", input), message, hint, of_key=of_key)
        self.input = input
        self.missing = missing
        self.columns = columns


@contextmanager
def errors_of_input(name: str) -> Iterator[None]:
    """Turn each DataError in the `with` block into an error about an input's column."""
    try:
        yield
    except SourceError:
        raise
    except DataError as error:
        raise SourceError(("columns", name), error.message, error.hint) from error


def assign_columns(
    source: Source,
    inputs: Mapping[str, str],
    mapping: Mapping[str, str | list[str]] | None,
) -> ColumnMap:
    """Return the column of each input.

    An input reads the column in `mapping`, else the column with the input's name. For a
    `sklearn:` data set, the only remaining float input reads `data`, and the only other
    remaining input reads `target`.

    Args:
        source: The source of the rows.
        inputs: The dtype of each input by name. All inputs of the model are needed to
            tell which one is the only one of its dtype.
        mapping: The key `columns` of the spec. Only kinds with `column_lists` allow lists
            and globs.

    Raises:
        SourceError: The column of an input is missing or ambiguous.
    """
    mapping = mapping or {}
    for name in mapping:
        if name not in inputs:
            raise InputColumnError(
                name,
                f"'columns' names '{name}', which is not an input",
                did_you_mean(name, inputs),
                of_key=True,
            )
    if source.declaration.column_lists:
        return {name: mapping.get(name, name) for name in inputs}
    named: dict[str, str] = {}
    for name, column in mapping.items():
        if not isinstance(column, str):
            raise InputColumnError(
                name,
                f"a list of columns works with {WITH_COLUMN_LISTS} sources, not with"
                f" {source.text}",
                "name one column whose rows have the input's shape",
            )
        named[name] = column
    if source.kind != "sklearn":
        return {name: named.get(name, name) for name in inputs}
    columns = SKLEARN[source.path]
    for name, column in named.items():
        if column not in columns:
            raise missing_column_error(source.text, column, name, columns)
    chosen = {name: name for name in inputs if name in columns} | named
    remaining = [name for name in inputs if name not in chosen]
    for column, kind in (("data", "float"), ("target", "other")):
        is_float = kind == "float"
        names = [n for n in remaining if (inputs[n] in FLOATS) == is_float]
        if len(names) > 1 or (names and column in chosen.values()):
            free = [c for c in columns if c not in chosen.values()] or list(columns)
            pairs = ", ".join(
                f"{name}: {free[min(i, len(free) - 1)]}"
                for i, name in enumerate(remaining)
            )
            inputs_ = ", ".join(f"'{name}'" for name in names)
            plural = "s" if len(names) > 1 else ""
            raise SourceError(
                ("columns",) if mapping else ("source",),
                f"the column of {source.text} for the {kind} input{plural} {inputs_} is"
                " ambiguous",
                f"name the columns, such as columns: {{{pairs}}}",
            )
        if names:
            chosen[names[0]] = column
    return {name: chosen[name] for name in inputs}


def missing_column_error(
    source: str,
    column: str,
    name: str,
    columns: Sequence[str],
    features: Sequence[str] = (),
) -> InputColumnError:
    """Return the error for an input whose column is not in the source.

    An input may also read one of `features`.
    """
    hint = did_you_mean(column, [*columns, *features])
    if not columns:
        hint = "the source has no columns"
    elif column == name:
        hint = f"{list_columns(columns)}; write columns: {{{name}: COLUMN}}"
    message = f"{source} has no column '{column}' for input '{name}'"
    return InputColumnError(name, message, hint, missing=column, columns=tuple(columns))


def list_columns(columns: Sequence[str]) -> str:
    """Return a hint with the columns of a source."""
    return f"its columns are {', '.join(columns)}"
