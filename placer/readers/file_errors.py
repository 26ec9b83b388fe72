"""The errors of files of rows that cannot be read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from placer.errors import DataError
from placer.plan.settings.data.columns import is_glob
from placer.system.files.nearest_path import nearest_path
from placer.system.files.regular import open_regular


@contextmanager
def file_errors(source: str, hint: str, *kinds: type[Exception]) -> Iterator[None]:
    """Raise DataError for a file that is missing or, with `hint`, damaged.

    `source` is the text of the source, and `kinds` are the exceptions that its reader
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
            hint = "let the user of this process read the file and its folder"
        elif isinstance(error, IsADirectoryError):
            hint = "name one file in the folder"
        raise DataError(f"{source} cannot be read: {why}", hint=hint) from error


_SIGNATURES = {
    b"\x1f\x8b": "it is compressed by gzip: give it a name that ends in .csv.gz",
    b"PK\x03\x04": "it is an Excel file or another zip archive: save the table as CSV",
    b"PAR1": "it is a Parquet file: write parquet:PATH",
    b"ARROW1": "it is an Arrow file: write the table as a Parquet file, parquet:PATH",
    b"\x93NUMPY": "it is an array of numpy: write its columns by numpy.savez, npz:PATH",
}
"""The first bytes of files that are no text, and what to do with them."""


def other_format(path: Path) -> str | None:
    """Return the hint for a file that is read as text, if it has another format."""
    with open_regular(path) as file:
        first = file.read(max(map(len, _SIGNATURES)))
    hints = (hint for each, hint in _SIGNATURES.items() if first.startswith(each))
    return None if path.suffix == ".gz" else next(hints, None)


def _missing_hint(source: str, opened: object) -> str:
    """Return the hint for a missing file: the nearest one, written as in the source."""
    kind, colon, path = source.partition(":")
    if "://" in path:
        return "a source is a file on this machine: download it"
    if (written := os.path.expandvars(os.path.expanduser(path))) != path:
        return f"'~' and variables are not replaced in a path: write {kind}:{written}"
    if is_glob(path):
        return (
            "a source is one file, whose name is not a pattern: join the files into one"
        )
    if isinstance(opened, str | Path) and path and str(opened).endswith(path):
        folder = str(opened)[: -len(path)]
        close = nearest_path(opened)
        if close is not None and close.startswith(folder):
            return f"did you mean '{kind}{colon}{close[len(folder) :]}'?"
    if path.startswith("/"):
        return "a relative path is one in the spec's folder, or in that of --data"
    return (
        f"it would be '{os.path.abspath(str(opened))}': the path is relative to the spec's"
        " folder, or to that of --data"
    )
