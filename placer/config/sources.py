"""Sources of rows as a spec names them, `KIND:PATH`, and the column of each input.

`placer.readers` reads the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from placer.errors import DataError, did_you_mean
from placer.types import FLOATS

SKLEARN: dict[str, tuple[str, ...]] = {
    "breast_cancer": ("data", "target"),
    "diabetes": ("data", "target"),
    "digits": ("data", "target", "images"),
    "iris": ("data", "target"),
    "linnerud": ("data", "target"),
    "wine": ("data", "target"),
}
"""The data sets that scikit-learn bundles, and their columns."""

KINDS = {
    "csv": "csv:PATH",
    "npz": "npz:PATH",
    "python": "python:MODULE:FUNCTION",
    "sklearn": "sklearn:NAME",
}
"""How each kind of source is written."""

POSITION = "batch.position"
"""The input that the runtime provides: uint32[batch, 2], the step and the number of the
row in the global batch."""

SPLITS = ("train", "test")
SPLIT_KINDS = ("csv", "sklearn")

ColumnMap = dict[str, str | list[str]]
"""The column of each input by its name; for a `csv:` file also a list of columns."""


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed source: `text` is `KIND:PATH` as written in the spec.

    `path` is the name of a data set, the path of a file, or MODULE:FUNCTION.
    """

    text: str
    kind: str
    path: str

    @classmethod
    def parse(cls, text: str) -> Source:
        """Parse the text of a source, such as `sklearn:digits`.

        Raises DataError if it is not one of `KINDS`.
        """
        kind, colon, path = text.partition(":")
        forms = ", ".join(KINDS.values())
        if not colon:
            raise DataError(f"'{text}' is not a source", hint=f"write one of: {forms}")
        if kind not in KINDS:
            raise DataError(
                f"unknown kind of source '{kind}' in '{text}'",
                hint=did_you_mean(kind, KINDS),
            )
        if kind == "sklearn" and path not in SKLEARN:
            raise DataError(
                f"scikit-learn has no bundled data set '{path}'",
                hint=did_you_mean(path, SKLEARN),
            )
        if kind in ("csv", "npz") and not path:
            raise DataError(f"'{text}' names no file", hint=f"write {KINDS[kind]}")
        if kind == "python":
            parts = path.split(":")
            if len(parts) != 2 or not all(part.isidentifier() for part in parts):
                raise DataError(
                    f"'{text}' does not name a module and a function",
                    hint=f"write {KINDS[kind]}, with MODULE.py beside the spec",
                )
        return cls(text, kind, path)


def check_split(source: Source, split: str | None) -> None:
    """Raise DataError if `source` has no such split. A `split` of None is valid."""
    if split is None:
        return
    if source.kind not in SPLIT_KINDS:
        raise DataError(
            f"'split' is for sklearn: and csv: sources, not for {source.text}",
            hint="choose the rows in the source itself",
        )
    if split not in SPLITS:
        raise DataError(f"unknown split '{split}'", hint=did_you_mean(split, SPLITS))


def assign_columns(
    source: Source,
    inputs: Mapping[str, str],
    mapping: Mapping[str, str | list[str]] | None,
) -> ColumnMap:
    """Return the column of each input.

    An input reads the column that `mapping` names, else the column with its own name.
    Of a `sklearn:` data set, the only remaining float input reads `data`, and the only
    other remaining input reads `target`.

    Args:
        source: The source of the rows.
        inputs: The dtype of each input, by name. They must be all inputs of the model:
            with some missing, another one could look like the only one of its dtype.
        mapping: The key `columns` of the spec. Lists of columns and globs are for
            `csv:` files only.

    Raises:
        DataError: The column of an input is missing or ambiguous.
    """
    mapping = mapping or {}
    for name in mapping:
        if name not in inputs:
            raise DataError(
                f"'columns' names '{name}', which is not an input",
                hint=did_you_mean(name, inputs),
            )
    if source.kind == "csv":
        return {name: mapping.get(name, name) for name in inputs}
    named: dict[str, str] = {}
    for name, column in mapping.items():
        if not isinstance(column, str):
            raise DataError(
                f"a list of columns is for csv: sources, not for {source.text}",
                hint="name one column, whose rows have the input's shape",
            )
        named[name] = column
    if source.kind != "sklearn":
        return {name: named.get(name, name) for name in inputs}
    columns = SKLEARN[source.path]
    for name, column in named.items():
        if column not in columns:
            raise missing_column_error(source.text, column, name, columns)
    remaining = [name for name in inputs if name not in named]
    by_name = {name: name for name in remaining if name in columns}
    remaining = [name for name in remaining if name not in by_name]
    floats = [name for name in remaining if inputs[name] in FLOATS]
    others = [name for name in remaining if inputs[name] not in FLOATS]
    chosen = named | by_name
    for names, column, kind in ((floats, "data", "float"), (others, "target", "other")):
        if len(names) > 1 or (names and column in chosen.values()):
            free = [c for c in columns if c not in chosen.values()] or list(columns)
            pairs = ", ".join(
                f"{name}: {free[min(i, len(free) - 1)]}"
                for i, name in enumerate(remaining)
            )
            inputs_ = ", ".join(f"'{name}'" for name in names)
            plural = "s" if len(names) > 1 else ""
            raise DataError(
                f"it is ambiguous which column of {source.text} feeds the {kind}"
                f" input{plural} {inputs_}",
                hint=f"name the columns, such as columns: {{{pairs}}}",
            )
        if names:
            chosen[names[0]] = column
    return {name: chosen[name] for name in inputs}


def missing_column_error(
    source: str, column: str, name: str, columns: tuple[str, ...]
) -> DataError:
    """Return the error for an input whose column the source does not have."""
    hint = did_you_mean(column, columns)
    if column == name:
        listed = ", ".join(columns)
        hint = f"its columns are {listed}; write columns: {{{name}: COLUMN}}"
    return DataError(f"{source} has no column '{column}' for input '{name}'", hint=hint)
