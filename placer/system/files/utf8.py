"""Rejects paths that are not UTF-8, which JAX and the files of a build cannot contain."""

from __future__ import annotations

import os
from pathlib import Path

from placer.errors import PlacerError


def check_utf8(path: Path, error: type[PlacerError]) -> None:
    """Raise an error if the absolute path is not UTF-8. JAX cannot compile a function
    in such a file: it raises `RuntimeError: std::bad_cast`."""
    full = os.fsencode(os.path.abspath(path))
    try:
        full.decode()
    except UnicodeDecodeError:
        shown = full.decode("utf-8", "backslashreplace")
        raise error(
            f"the path '{shown}' is not UTF-8",
            hint="rename the folder, or use another one",
        ) from None
