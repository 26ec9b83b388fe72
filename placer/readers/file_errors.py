"""The errors of files of rows that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from placer.errors import DataError
from placer.files.nearest_path import nearest_path


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
        raise DataError(f"{source} cannot be read: {why}", hint=hint) from error


def _missing_hint(source: str, opened: object) -> str:
    """Return the hint for a missing file: the nearest one, written as in the source."""
    kind, colon, path = source.partition(":")
    if isinstance(opened, str | Path) and path and str(opened).endswith(path):
        folder = str(opened)[: -len(path)]
        close = nearest_path(opened)
        if close is not None and close.startswith(folder):
            return f"did you mean '{kind}{colon}{close[len(folder) :]}'?"
    return "the path is relative to the spec's folder"
