"""What placer keeps in the user's cache folder, and how much of it: compiled code, which
is run, and the logs of failed runs."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

LIMIT: Final = 2 << 30
"""Bytes of compiled code that are kept."""
PAUSE: Final = 3600.0
"""Least seconds between two looks at how much is kept."""
_CODE: Final = ("-cache", ".nbi", ".nbc")
"""How the names of files of JAX and of numba end."""


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


def bound(limit: int = LIMIT) -> None:
    """Remove compiled code that was not used for the longest, down to `limit` bytes.

    Looks once in `PAUSE` seconds, whichever process comes first. Code that another
    process is about to read may go: it is compiled again then. Where nothing can be
    removed, nothing is: this never raises.
    """
    base = user_cache()
    if base is None or not base.is_dir() or kept(base) is None:
        return
    with suppress(OSError):
        looked = base / "looked"
        if looked.exists() and time.time() - looked.stat().st_mtime < PAUSE:
            return
        looked.touch()
        found = sorted(_code(base), reverse=True)  # what was used last comes first
        held = 0
        for _, size, file in found:
            held += size
            if held > limit:
                with suppress(OSError):
                    os.unlink(file)


def _code(base: Path) -> Iterator[tuple[float, int, str]]:
    """When each file of compiled code was last used, in seconds since the epoch, its
    bytes and its path."""
    for folder in (*base.glob("xla-*"), base / "kernels"):
        for at, _, names in os.walk(folder):
            for name in names:
                if name.endswith(_CODE):
                    file = os.path.join(at, name)
                    with suppress(OSError):  # another process has removed it
                        status = os.stat(file, follow_symlinks=False)
                        used = max(status.st_atime, status.st_mtime)
                        yield used, status.st_size, file
