"""Runs the code of a `python:` source: its rows, its module, and errors with the row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from traceback import extract_tb
from typing import Any, Never

from placer.errors import DataError, PlacerError, RunError, missing_package_hint
from placer.readers.arguments import ReadRequest


def check_is_mapping(
    request: ReadRequest, row: object, number: int
) -> Mapping[str, Any]:
    """Return the row; raise DataError unless it is a mapping."""
    if isinstance(row, Mapping):
        return row
    hint = "yield one dict per row, from column name to value"
    if isinstance(row, tuple | list) and row:
        names = list(dict.fromkeys(request.single_feeds.values()))[: len(row)]
        pairs = ", ".join(f'"{name}": item[{i}]' for i, name in enumerate(names))
        hint = f"name the values of each item: {{{pairs}}}"
    raise DataError(
        f"{request.source.text}: row {number} is a {type(row).__name__}, not a dict",
        hint=hint,
    )


def module_path(request: ReadRequest) -> Path:
    """Return the file of the source's module."""
    module_name, _ = request.source.path.split(":")
    return (request.folder / f"{module_name}.py").absolute()


def takes(function: Callable[..., Any], *arguments: object) -> bool:
    """Return whether a function can be called with these arguments; True if not known."""
    try:
        signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # a function in C may have no signature
        return True
    return True


@contextmanager
def reader_errors(
    request: ReadRequest, when: str, raised: type[RunError] = RunError
) -> Iterator[None]:
    """Raise RunError, or a class of it, for an exception of a source's code."""
    try:
        yield
    except PlacerError:
        raise
    except (Exception, SystemExit) as error:
        raise_reader_error(request, when, error, raised)


def raise_reader_error(
    request: ReadRequest,
    when: str,
    error: BaseException,
    raised: type[RunError] = RunError,
) -> Never:
    """Raise RunError, or a class of it, for an exception of a source's code, with the line of its
    module."""
    path = module_path(request)
    frames = [f for f in extract_tb(error.__traceback__) if f.filename == str(path)]
    where = f", line {frames[-1].lineno}" if frames else ""
    hint = f"see {path.name}{where}"
    if isinstance(error, FileNotFoundError):
        hint += "; placer.data_folder() is the folder of the spec"
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and (request.folder / f"{missing}.py").is_file():
        # The lanes of a stream run outside of `Modules.importable`, which holds a lock.
        hint += f"; import {missing} at the top of {path.name}"
    elif install := missing_package_hint(error):
        hint += f"; {install}"
    kind = type(error).__name__
    message = f"reader {request.source.text} failed {when}: {kind}: {error}"
    raise raised(message, hint=hint) from error
