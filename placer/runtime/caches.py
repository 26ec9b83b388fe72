"""Folders of the user's cache that hold code which is run."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def kept(folder: Path | None) -> Path | None:
    """The folder, made if need be, or None where it is not ours alone or cannot be
    written: what lies there is run, and only saves time."""
    if folder is None:
        return None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            return None
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return None
    return folder


def user_cache() -> Path | None:
    """Where placer keeps things from run to run: `PLACER_CACHE`, else `placer` in the
    user's cache folder; None for a user without a home."""
    if given := os.environ.get("PLACER_CACHE"):
        return Path(given)
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:
        return None
    return caches / "placer"
