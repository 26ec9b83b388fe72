"""Checks that files and folders can be written, before anything is computed."""

from __future__ import annotations

import os
from pathlib import Path

from placer.errors import PlacerError


def why_not_writable(file: Path, *, replaces: bool) -> str:
    """Return the reason why a file in an existing folder cannot be written, or "". With
    `replaces`, a new file replaces an existing one, which needs a writable folder."""
    exists = file.exists()
    if (replaces or not exists) and not os.access(file.parent, os.W_OK | os.X_OK):
        return f"the folder '{file.parent}' is not writable"
    if exists and not os.access(file, os.W_OK):
        return "it is not writable"
    return ""


def check_can_create(folder: Path) -> None:
    """Raise PlacerError if a folder cannot be created, or if it exists and is not
    writable."""
    above = folder
    try:
        while not above.exists() and above != above.parent:
            above = above.parent
        if not above.is_dir():
            problem = f"'{above}' is not a folder"
        elif not os.access(above, os.W_OK | os.X_OK):
            problem = f"'{above}' is not writable"
        else:
            return
    except OSError as error:  # for example if the name is too long
        problem = str(error.strerror)
    raise PlacerError(
        f"cannot write to the folder '{folder}': {problem}", hint="name another folder"
    )
