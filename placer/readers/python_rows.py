"""Rows that a Python function beside the spec yields, one dict per row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any, Never

import numpy as np

from placer import aligned
from placer.errors import (
    BuildError,
    DataError,
    PlacerError,
    RunError,
    did_you_mean,
    missing_package,
)
from placer.graph.sources import Source, no_column
from placer.modules import Modules, modules_of
from placer.readers.column import Column, check_limits, check_shape, convert
from placer.readers.rows import LoadedRows, Rows


def read(
    source: Source,
    columns: Sequence[Column],
    feeds: Mapping[str, str],
    folder: Path,
) -> Rows:
    """Call `FUNCTION` of `folder/MODULE.py` for its rows, each a dict.

    It returns an iterable of them, all of which are held; or a sequence of its own
    (`__len__` and `__getitem__`, as PyTorch's map-style datasets), whose rows are asked
    for when a step needs them; or a function without arguments that returns either.
    Every row has the same keys. Rows are numbered from 0 in errors. RunError for an
    exception of the function itself, DataError for rows that do not fit, BuildError for
    a module of a build that is not as it was compiled.
    """
    module_name, _ = source.path.split(":")
    path = (folder / f"{module_name}.py").absolute()
    if not path.is_file():
        raise DataError(
            f"{source.text}: there is no {module_name}.py",
            hint="the module stands beside the spec",
        )
    with modules_of(folder) as modules:
        function = _function(source, path, modules)
        made = _made(source, path, function)
        if _is_dataset(made):
            rows = _length(source, path, made)
            return AskedRows(source, path, modules, made, rows, tuple(columns), feeds)
        return _collected(source, path, made, columns, feeds)


@dataclass(frozen=True, slots=True)
class AskedRows:
    """Rows of a sequence, each asked for when it is needed, in the step's order."""

    source: Source
    path: Path
    modules: Modules
    made: Sequence[Any]
    rows: int
    columns: tuple[Column, ...]
    feeds: Mapping[str, str]

    def take(
        self, indices: np.ndarray, out: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """As `Rows.take`; RunError, with the row, for what the sequence raises."""
        taken: dict[str, list[np.ndarray]] = {c.name: [] for c in self.columns}
        with self.modules.reachable():  # rows may import their neighbours only now
            for number in indices.tolist():
                row = self._row(number)
                for column in self.columns:
                    named = self.feeds[column.name]
                    value = _value(self.source, row, column, named, number)
                    taken[column.name].append(value)
        found = {
            c.name: _stack(taken[c.name], c, None if out is None else out[c.name])
            for c in self.columns
        }
        _check_limits(self.source, self.feeds, found, self.columns, indices)
        return found

    def _row(self, number: int) -> Mapping[str, Any]:
        if not 0 <= number < self.rows:
            raise IndexError(f"row {number} of {self.rows} rows")
        try:
            row = self.made[number]
        except (Exception, SystemExit) as error:
            _fail(self.source, self.path, f"at row {number}", error)
        return _mapping(self.source, row, number)


def _is_dataset(made: object) -> bool:
    """Whether rows can be asked for by number, and are not all there already."""
    asked = hasattr(made, "__len__") and hasattr(made, "__getitem__")
    return asked and not isinstance(made, type | list | tuple | Mapping)


def _length(source: Source, path: Path, made: Sequence[Any]) -> int:
    try:
        return len(made)
    except (Exception, SystemExit) as error:
        _fail(source, path, "to say its length", error)


def _made(source: Source, path: Path, function: Callable[..., Any]) -> Any:
    try:
        made = function()
        return made() if callable(made) and not _is_dataset(made) else made
    except PlacerError:
        raise
    except (Exception, SystemExit) as error:
        _fail(source, path, "at row 0", error)


def _mapping(source: Source, row: object, number: int) -> Mapping[str, Any]:
    if not isinstance(row, Mapping):
        raise DataError(
            f"{source.text}: row {number} is a {type(row).__name__}, not a dict",
            hint="yield one dict per row, column name to value",
        )
    return row


def _function(source: Source, path: Path, modules: Modules) -> Callable[..., Any]:
    module_name, function_name = source.path.split(":")
    module = _load(source, path, modules)
    function = getattr(module, function_name, None)
    if not callable(function):
        names = [n for n, v in vars(module).items() if callable(v) and n[0] != "_"]
        raise DataError(
            f"{source.text}: {module_name}.py has no function '{function_name}'",
            hint=did_you_mean(function_name, names),
        )
    found: Callable[..., Any] = function
    return found


def _collected(
    source: Source,
    path: Path,
    made: Iterable[Any],
    columns: Sequence[Column],
    feeds: Mapping[str, str],
) -> LoadedRows:
    taken: dict[str, list[np.ndarray]] = {column.name: [] for column in columns}
    keys: frozenset[str] | None = None
    count = 0
    for count, found in enumerate(_rows(source, path, made), start=1):
        row = _mapping(source, found, count - 1)
        keys = _same_keys(source, row, keys, count - 1)
        for column in columns:
            value = _value(source, row, column, feeds[column.name], count - 1)
            taken[column.name].append(value)
    if count == 0:
        raise DataError(
            f"{source.text} gave no rows", hint="a source needs at least one row"
        )
    stacked = {c.name: _stack(taken[c.name], c) for c in columns}
    _check_limits(source, feeds, stacked, columns, np.arange(count))
    return LoadedRows(stacked, count)


def _check_limits(
    source: Source,
    feeds: Mapping[str, str],
    taken: Mapping[str, np.ndarray],
    columns: Sequence[Column],
    numbers: np.ndarray,
) -> None:
    for column in columns:
        named = f"{source.text}: column '{feeds[column.name]}'"

        def where(i: int, named: str = named) -> str:
            return f"{named}, row {numbers[i]}"

        check_limits(taken[column.name], column, where)


def _load(source: Source, path: Path, modules: Modules) -> ModuleType:
    """Run the module from its file; it may import its neighbours."""
    try:
        return modules.load(path.stem, f"placer_source_{path.stem}")
    except BuildError:
        raise
    except (Exception, SystemExit) as error:
        _fail(source, path, "to load", error)


def _rows(source: Source, path: Path, made: Iterable[Any]) -> Iterator[Any]:
    """The rows that are yielded; what is raised is told with the row it was at."""
    at = 0
    try:
        for row in made:
            yield row
            at += 1
    except PlacerError:
        raise
    except (Exception, SystemExit) as error:
        _fail(source, path, f"at row {at}", error)


def _fail(source: Source, path: Path, when: str, error: BaseException) -> Never:
    frames = [f for f in extract_tb(error.__traceback__) if f.filename == str(path)]
    where = f", line {frames[-1].lineno}" if frames else ""
    kind = type(error).__name__
    hint = f"see {path.name}{where}"
    if install := missing_package(error):
        hint += f"; {install}"
    raise RunError(
        f"reader {source.text} failed {when}: {kind}: {error}", hint=hint
    ) from error


def _same_keys(
    source: Source, row: Mapping[str, Any], keys: frozenset[str] | None, number: int
) -> frozenset[str]:
    found = frozenset(row)
    if keys is None or found == keys:
        return found
    missing, extra = sorted(keys - found), sorted(found - keys)
    what = f"lacks '{missing[0]}'" if missing else f"has '{extra[0]}'"
    rest = "which row 0 has" if missing else "which row 0 has not"
    raise DataError(
        f"{source.text}: row {number} {what}, {rest}",
        hint="every row has the same keys",
    )


def _value(
    source: Source, row: Mapping[str, Any], column: Column, named: str, number: int
) -> np.ndarray:
    if named not in row:
        raise no_column(source.text, named, column.name, tuple(sorted(row)))
    try:
        value = np.asarray(row[named])
    except ValueError as error:
        raise DataError(
            f"{source.text}: column '{named}', row {number}: {error}",
            hint=f"input '{column.name}' is {column}",
        ) from error
    check_shape(value.shape, column, source.text, named, number)
    return convert(value[np.newaxis], column, source.text, named, number)


def _stack(
    values: list[np.ndarray], column: Column, out: np.ndarray | None = None
) -> np.ndarray:
    if out is None:
        out = aligned.empty((len(values), *column.shape), column.dtype)
    if values:
        np.concatenate(values, axis=0, out=out)
    return out
