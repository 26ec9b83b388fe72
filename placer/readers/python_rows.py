"""Read the rows that a Python function beside the spec returns, one dict per row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from placer.build.modules import Modules, modules_in
from placer.config.sources import Source
from placer.errors import DataError, PlacerError, did_you_mean
from placer.readers.arguments import ReadRequest
from placer.readers.iterable import collect_rows
from placer.readers.map_style import MapStyleRows
from placer.readers.python_row import raise_reader_error
from placer.readers.rows import Rows


def read(request: ReadRequest) -> Rows:
    """Call `FUNCTION` of `MODULE.py` for its rows, each a dict.

    The function returns an iterable of rows, which are all read into memory; or a
    sequence of its own class (`__len__` and `__getitem__`, like PyTorch's map-style
    datasets), whose rows are read when a step needs them; or a function without
    arguments that returns one of these. Every row has the same keys.

    Raises:
        RunError: for an exception of the function.
        DataError: for rows that do not fit; they are numbered from 0.
        BuildError: for a module of a build that has changed since it was compiled.
    """
    source, folder, feeds = request.source, request.folder, request.single_feeds
    module_name, _ = source.path.split(":")
    path = (folder / f"{module_name}.py").absolute()
    if not path.is_file():
        raise DataError(
            f"{source.text}: there is no {module_name}.py",
            hint="put the module beside the spec",
        )
    with modules_in(folder) as modules:
        function = _find_function(source, path, modules)
        data = _call_function(source, path, function)
        if _is_dataset(data):
            rows = _length_of(source, path, data)
            inputs = tuple(request.columns)
            return MapStyleRows(
                source, path, modules, data, rows, inputs, feeds, request.options
            )
        return collect_rows(source, path, data, request.columns, feeds, request.options)


def _is_dataset(data: object) -> bool:
    """Return whether rows are read by number, and are not in memory already."""
    is_indexed = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    return is_indexed and not isinstance(data, type | list | tuple | Mapping)


def _length_of(source: Source, path: Path, dataset: Sequence[Any]) -> int:
    try:
        return len(dataset)
    except (Exception, SystemExit) as error:
        raise_reader_error(source, path, "to return its length", error)


def _call_function(source: Source, path: Path, function: Callable[..., Any]) -> Any:
    try:
        data = function()
        return data() if callable(data) and not _is_dataset(data) else data
    except PlacerError:
        raise
    except (Exception, SystemExit) as error:
        raise_reader_error(source, path, "at row 0", error)


def _find_function(source: Source, path: Path, modules: Modules) -> Callable[..., Any]:
    module_name, function_name = source.path.split(":")
    module = _load_module(source, path, modules)
    function = getattr(module, function_name, None)
    if not callable(function):
        names = [n for n, v in vars(module).items() if callable(v) and n[0] != "_"]
        raise DataError(
            f"{source.text}: {module_name}.py has no function '{function_name}'",
            hint=did_you_mean(function_name, names),
        )
    checked: Callable[..., Any] = function
    return checked


def _load_module(source: Source, path: Path, modules: Modules) -> ModuleType:
    """Run the module's source; it may import the modules beside it."""
    try:
        return modules.load(path.stem, f"placer_source_{path.stem}")
    except PlacerError:
        raise
    except (Exception, SystemExit) as error:
        raise_reader_error(source, path, "to load", error)
