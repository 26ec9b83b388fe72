"""Where rows come from, as a spec names it: `KIND:REST`, and which column feeds what.

The rows themselves are read by `placer.readers`.
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
"""The sets that come with scikit-learn, with their columns."""

KINDS = {
    "csv": "csv:PATH",
    "npz": "npz:PATH",
    "python": "python:MODULE:FUNCTION",
    "sklearn": "sklearn:NAME",
}
POSITION = "batch.position"
"""The input that no source gives: uint32[batch, 2], the step and the row's number in
the global batch."""

SPLITS = ("train", "test")
SPLIT_KINDS = ("csv", "sklearn")

Feeds = dict[str, str | list[str]]
"""The column of each input, or several of a `csv:` file, by the input's name."""


@dataclass(frozen=True, slots=True)
class Source:
    """A source, read: `path` is the set's name, the file's path or MODULE:FUNCTION."""

    text: str
    kind: str
    path: str

    @classmethod
    def parse(cls, text: str) -> Source:
        """Read one of `KINDS`, such as `sklearn:digits`; DataError."""
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
                f"scikit-learn has no bundled set '{path}'",
                hint=did_you_mean(path, SKLEARN),
            )
        if kind in ("csv", "npz") and not path:
            raise DataError(f"'{text}' names no file", hint=f"write {KINDS[kind]}")
        if kind == "python":
            parts = path.split(":")
            if len(parts) != 2 or not all(part.isidentifier() for part in parts):
                raise DataError(
                    f"'{text}' does not name a module and its function",
                    hint=f"write {KINDS[kind]}, with MODULE.py beside the spec",
                )
        return cls(text, kind, path)


def check_split(source: Source, split: str | None) -> None:
    """DataError where `split` cannot be asked of this source."""
    if split is None:
        return
    if source.kind not in SPLIT_KINDS:
        raise DataError(
            f"'split' is for sklearn: and csv: sources, not for {source.text}",
            hint="name the part you want in the source itself",
        )
    if split not in SPLITS:
        raise DataError(f"unknown split '{split}'", hint=did_you_mean(split, SPLITS))


def assign(
    source: Source,
    inputs: Mapping[str, str],
    mapping: Mapping[str, str | list[str]] | None,
) -> Feeds:
    """Which column feeds each input; `inputs` gives their dtypes by name.

    `mapping` (a spec's `columns`) goes first, then a column of the input's own name;
    in a `sklearn:` set the float input left takes `data`, the other one `target`. A
    list of columns, or a glob over their names, is for `csv:` files alone.
    DataError where that does not settle it. Ask with all inputs of the model: with
    some of them left out another one may look like the only one of its kind.
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
    given: dict[str, str] = {}
    for name, column in mapping.items():
        if not isinstance(column, str):
            raise DataError(
                f"a list of columns is for csv: sources, not for {source.text}",
                hint="name one column, whose rows have the input's shape",
            )
        given[name] = column
    if source.kind != "sklearn":
        return {name: given.get(name, name) for name in inputs}
    columns = SKLEARN[source.path]
    for name, column in given.items():
        if column not in columns:
            raise no_column(source.text, column, name, columns)
    left = [name for name in inputs if name not in given]
    by_name = {name: name for name in left if name in columns}
    left = [name for name in left if name not in by_name]
    floats = [name for name in left if inputs[name] in FLOATS]
    others = [name for name in left if inputs[name] not in FLOATS]
    chosen = given | by_name
    for names, column, kind in ((floats, "data", "float"), (others, "target", "other")):
        if len(names) > 1 or (names and column in chosen.values()):
            free = [c for c in columns if c not in chosen.values()] or list(columns)
            pairs = ", ".join(
                f"{name}: {free[min(i, len(free) - 1)]}" for i, name in enumerate(left)
            )
            inputs_ = ", ".join(f"'{name}'" for name in names)
            plural = "s" if len(names) > 1 else ""
            raise DataError(
                f"{source.text} does not say which column feeds the {kind}"
                f" input{plural} {inputs_}",
                hint=f"say it, such as columns: {{{pairs}}}",
            )
        if names:
            chosen[names[0]] = column
    return {name: chosen[name] for name in inputs}


def no_column(
    source: str, column: str, name: str, columns: tuple[str, ...]
) -> DataError:
    """The error for an input that asks for a column that the source lacks."""
    hint = did_you_mean(column, columns)
    if column == name:
        listed = ", ".join(columns)
        hint = f"its columns are {listed}; write columns: {{{name}: COLUMN}}"
    return DataError(f"{source} has no column '{column}' for input '{name}'", hint=hint)
