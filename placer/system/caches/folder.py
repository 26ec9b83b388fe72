"""placer's folder in the user's cache: compiled code, data sets of scikit-learn, and the
logs of failed runs."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

LIMIT: Final = 2 << 30
"""Bytes of compiled code that may stay in the cache."""
TRIM_INTERVAL: Final = 3600.0
"""Seconds between two checks of the size at least."""
_CODE: Final = ("-cache", ".nbi", ".nbc")
"""The endings of the names of cache files of JAX and of numba."""


def usable_folder(folder: Path | None) -> Path | None:
    """Return the folder, created if necessary, or None if it must not be used.

    The folder must belong to this user, be writable for this user only, and accept
    files: the code in it is executed. A cache only saves time, so nothing raises.
    """
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
    """Return the path of placer's cache: `PLACER_CACHE`, else `placer` in the user's
    cache folder; None for a user without a home folder. It may not exist."""
    if path := os.environ.get("PLACER_CACHE"):
        return Path(path)
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:
        return None
    return caches / "placer"


def trim_caches(limit: int = LIMIT) -> None:
    """Remove the compiled code that was least recently used, down to `limit` bytes.

    Of all processes, one checks every `TRIM_INTERVAL` seconds. Code that another
    process is about to read may be removed: that process compiles it again. Never
    raises: a file that cannot be removed stays.
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
        files = sorted(_code(base), reverse=True)  # the most recently used first
        total = 0
        for _, size, file in files:
            total += size
            if total > limit:
                with suppress(OSError):
                    os.unlink(file)


def _code(base: Path) -> Iterator[tuple[float, int, str]]:
    """Yield for each file of compiled code the time of its last use, in seconds since
    the epoch, its bytes, and its path."""
    for folder in (*base.glob("xla-*"), base / "kernels"):
        for at, _, names in os.walk(folder):
            for name in names:
                if name.endswith(_CODE):
                    file = os.path.join(at, name)
                    with suppress(OSError):  # another process has removed it
                        status = os.stat(file, follow_symlinks=False)
                        last_used = max(status.st_atime, status.st_mtime)
                        yield last_used, status.st_size, file
