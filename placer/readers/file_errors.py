"""The errors of files of rows that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from placer.errors import DataError


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
    except FileNotFoundError:
        raise DataError(
            f"{source}: there is no such file",
            hint="the path is relative to the spec's folder",
        ) from None
    except kinds as error:
        reason = isinstance(error, OSError) and error.strerror
        why = reason or str(error) or type(error).__name__
        raise DataError(f"{source} cannot be read: {why}", hint=hint) from error
