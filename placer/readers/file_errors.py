"""Converts errors of files that cannot be read."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from placer.errors import DataError
from placer.system.files.nearest_path import nearest_path
from placer.system.files.regular import open_regular


@contextmanager
def file_errors(source: str, hint: str, *kinds: type[Exception]) -> Iterator[None]:
    """Raise DataError for a file that is missing or, with `hint`, damaged.

    `source` is the text of the source. `kinds` are the exceptions that its reader
    raises for a damaged file.
    """
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(
            f"{source}: there is no such file",
            hint=_missing_hint(source, error.filename),
        ) from None
    except kinds as error:
        reason = isinstance(error, OSError) and error.strerror
        why = reason or str(error) or type(error).__name__
        if isinstance(error, PermissionError):
            hint = (
                "give the user of this process permission to read the file and its"
                " folder"
            )
        elif isinstance(error, IsADirectoryError):
            hint = "name one file in the folder"
        elif isinstance(error, OSError) and error.errno == errno.EMFILE:
            hint = "raise the limit of open files (ulimit -n), or write fewer files"
        raise DataError(f"{source} cannot be read: {why}", hint=hint) from error


_SIGNATURES = {
    b"\x1f\x8b": "it is compressed with gzip: give it a name that ends in .csv.gz",
    b"PK\x03\x04": "it is an Excel file or another zip archive: save the table as CSV",
    b"PAR1": "it is a Parquet file: write parquet:PATH",
    b"ARROW1": "it is an Arrow file: convert it to a Parquet file, and write parquet:PATH",
    b"\x93NUMPY": "it is a NumPy array: write its columns with numpy.savez, and write npz:PATH",
}
"""The first bytes of files that are not text, and a hint for each."""


def other_format(path: Path) -> str | None:
    """Return a hint for a file that is read as text but has another format."""
    with open_regular(path) as file:
        first = file.read(max(map(len, _SIGNATURES)))
    hints = (hint for each, hint in _SIGNATURES.items() if first.startswith(each))
    return None if path.suffix == ".gz" else next(hints, None)


def _missing_hint(source: str, opened: object) -> str:
    """Return a hint for a missing file, such as the nearest existing file."""
    kind, colon, path = source.partition(":")
    if "://" in path:
        return "a source is a file on this machine: download it"
    if (written := os.path.expandvars(os.path.expanduser(path))) != path:
        return f"paths do not expand '~' and variables; write {kind}:{written}"
    if isinstance(opened, str | Path) and path and str(opened).endswith(path):
        folder = str(opened)[: -len(path)]
        close = nearest_path(opened)
        if close is not None and close.startswith(folder):
            return f"did you mean '{kind}{colon}{close[len(folder) :]}'?"
    if path.startswith("/"):
        return "relative paths start at the spec's folder, or at the folder of --data"
    return (
        f"placer looked for '{os.path.abspath(str(opened))}'; relative paths start"
        " at the spec's folder, or at the folder of --data"
    )
