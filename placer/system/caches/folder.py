"""placer's cache folder: compiled code, data sets of scikit-learn, and logs of failed
runs."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

LIMIT: Final = 2 << 30
"""The largest size of the compiled code in the cache, in bytes."""
TRIM_INTERVAL: Final = 3600.0
"""The smallest number of seconds between two checks of the size."""
_CODE: Final = ("-cache", ".nbi", ".nbc")
"""The endings of the cache files of JAX and numba."""


def usable_folder(folder: Path | None) -> Path | None:
    """Return the folder, created if necessary, or None if it must not be used.

    The folder must belong to this user and be writable only for this user, because the
    code in it is executed. Files must be writable there. A cache only saves time, so
    nothing raises.
    """
    if folder is None:
        return None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if folder_problem(folder) is None else None


def folder_problem(folder: Path) -> str | None:
    """Return why `usable_folder` refuses an existing folder, or None."""
    try:
        status = folder.stat()
        if status.st_uid != os.getuid():
            return "it belongs to another user"
        if status.st_mode & 0o022:
            from shlex import quote  # rarely needed

            return f"other users can write to it: chmod go-w {quote(str(folder))}"
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return error.strerror
    return None


def user_cache() -> Path | None:
    """Return the path of placer's cache, which may not exist. It is `PLACER_CACHE`, or
    else `placer` in the user's cache folder; None for a user without a home folder."""
    if path := os.environ.get("PLACER_CACHE"):
        return Path(path)
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:
        return None
    return caches / "placer"


def trim_caches(limit: int = LIMIT) -> None:
    """Remove the least recently used compiled code until at most `limit` bytes are left.

    One process does so every `TRIM_INTERVAL` seconds. If it removes code that another
    process is about to read, the other process compiles the code again. Files that cannot
    be removed stay; nothing raises.
    """
    base = user_cache()
    if base is None or not base.is_dir() or usable_folder(base) is None:
        return
    with suppress(OSError):
        last_check = base / "looked"
        if (
            last_check.exists()
            and time.time() - last_check.stat().st_mtime < TRIM_INTERVAL
        ):
            return
        last_check.touch()
        files = sorted(_code(base), reverse=True)  # most recently used first
        total = 0
        for _, size, file in files:
            total += size
            if total > limit:
                with suppress(OSError):
                    os.unlink(file)


def _code(base: Path) -> Iterator[tuple[float, int, str]]:
    """Yield the time of last use in seconds, the size and the path of each code file."""
    for folder in (*base.glob("xla-*"), base / "kernels"):
        for at, _, names in os.walk(folder):
            for name in names:
                if name.endswith(_CODE):
                    file = os.path.join(at, name)
                    with suppress(OSError):  # Another process has removed the file.
                        status = os.stat(file, follow_symlinks=False)
                        last_used = max(status.st_atime, status.st_mtime)
                        yield last_used, status.st_size, file
