"""Rows that a Python function beside the spec yields, one dict per row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from placer.build.modules import Modules, modules_of
from placer.config.sources import Source
from placer.errors import DataError, PlacerError, did_you_mean
from placer.readers.arguments import Reading
from placer.readers.column import Column
from placer.readers.iterable import collect
from placer.readers.map_style import AskedRows
from placer.readers.python_row import fail
from placer.readers.rows import Rows


def read(
    source: Source,
    columns: Sequence[Column],
    feeds: Mapping[str, str],
    folder: Path,
    reading: Reading,
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
            own = tuple(columns)
            return AskedRows(source, path, modules, made, rows, own, feeds, reading)
        return collect(source, path, made, columns, feeds, reading)


def _is_dataset(made: object) -> bool:
    """Whether rows can be asked for by number, and are not all there already."""
    asked = hasattr(made, "__len__") and hasattr(made, "__getitem__")
    return asked and not isinstance(made, type | list | tuple | Mapping)


def _length(source: Source, path: Path, made: Sequence[Any]) -> int:
    try:
        return len(made)
    except (Exception, SystemExit) as error:
        fail(source, path, "to say its length", error)


def _made(source: Source, path: Path, function: Callable[..., Any]) -> Any:
    try:
        made = function()
        return made() if callable(made) and not _is_dataset(made) else made
    except PlacerError:
        raise
    except (Exception, SystemExit) as error:
        fail(source, path, "at row 0", error)


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


def _load(source: Source, path: Path, modules: Modules) -> ModuleType:
    """Run the module from its file; it may import its neighbours."""
    try:
        return modules.load(path.stem, f"placer_source_{path.stem}")
    except PlacerError:
        raise
    except (Exception, SystemExit) as error:
        fail(source, path, "to load", error)
