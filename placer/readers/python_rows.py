"""Reads the rows that a Python function next to the spec returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from placer.errors import DataError, did_you_mean
from placer.plan.modules import Modules, modules_in
from placer.readers.arguments import ReadRequest
from placer.readers.iterable import collect_rows
from placer.readers.map_style import MapStyleRows, read_item
from placer.readers.python_columns import read_columns
from placer.readers.python_row import module_path, reader_errors, takes
from placer.readers.python_values import needs_row, python_values
from placer.readers.rows import Rows

_TABLES = ("pandas", "polars", "pyarrow")
"""The packages whose tables cannot be used as rows."""


def read(request: ReadRequest) -> Rows:
    """Call `FUNCTION` of `MODULE.py` for its rows.

    The function may return:

    - an iterable of rows, which are all read into memory;
    - a sequence of its own class (`__len__` and `__getitem__`, like PyTorch's map-style
      datasets), whose rows are read when a step needs them;
    - a mapping from column to an array with all rows;
    - a function without arguments that returns one of these.

    Every row has the same keys.

    Raises:
        RunError: if the function raises.
        DataError: if rows do not fit; they are numbered from 0.
        BuildError: if a module of a build has changed since it was compiled.
    """
    with modules_in(request.folder) as modules:
        function = find_function(request, modules)
        if not takes(function) and takes(function, 0, 1, None):
            raise DataError(
                f"{request.source.text} is the function of a stream: it takes a lane, the"
                " number of lanes and a mark",
                hint="use a source with fixed rows here; a stream is for data.train, with"
                " stream: {lanes: 24, rows: 1000000}",
            )
        with reader_errors(request, "at row 0"):
            data = function()
            if callable(data) and not _is_dataset(data):
                data = data()
        if not hasattr(data, "__iter__") and not hasattr(data, "__getitem__"):
            what = "None" if data is None else f"a {type(data).__name__}"
            raise DataError(
                f"{request.source.text} returned {what}, which has no rows",
                hint="yield a dict for each row, or return the rows",
            )
        if type(data).__module__.partition(".")[0] in _TABLES:
            raise DataError(
                f"{request.source.text} returned a {type(data).__name__}",
                hint="return a dict with the array of each column that the inputs read",
            )
        if isinstance(data, Mapping):
            return read_columns(request, data)
        if not _is_dataset(data):
            return collect_rows(request, function, data)
        with reader_errors(request, "to return its length"):
            rows = len(data)
        first = None
        if rows and needs_row(request):
            first = read_item(request, data, 0)
        values = python_values(request, first)
        return MapStyleRows(request, modules, data, rows, values)


def _is_dataset(data: object) -> bool:
    """Return True if rows are read by number, and are not in memory already."""
    is_indexed = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    return is_indexed and not isinstance(data, type | list | tuple)


def find_function(request: ReadRequest, modules: Modules) -> Callable[..., Any]:
    """Run the source's module, and return the function.

    Raises:
        DataError: if there is no module, or it has no such function.
        RunError: if the module raises.
    """
    path = module_path(request)
    if not path.is_file():
        raise DataError(
            f"{request.source.text}: there is no {path.name}",
            hint="put the module next to the spec",
        )
    module_name, function_name = request.source.path.split(":")
    with reader_errors(request, "to load"):
        module = modules.load(module_name, f"placer_source_{module_name}")
    function = getattr(module, function_name, None)
    if not callable(function):
        names = [n for n, v in vars(module).items() if callable(v) and n[0] != "_"]
        raise DataError(
            f"{request.source.text}: {module_name}.py has no function '{function_name}'",
            hint=did_you_mean(function_name, names),
        )
    checked: Callable[..., Any] = function
    return checked
