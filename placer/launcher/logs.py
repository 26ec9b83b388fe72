"""The folder of a run's logs: a named one stays, the launcher's own only after a failure.

Folders of failed and interrupted runs lie in one place, and the oldest go once there
are more than `KEPT` of them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from placer.memory.caches import kept, user_cache

KEPT: Final = 20
"""Folders of logs of runs that have ended which are kept, the newest."""
_MARK: Final = ".placer-run"
"""The file by which a folder of logs is known, and which its launcher has locked."""


@dataclass(slots=True)
class Logs:
    """The folder of a run's logs. `failed` keeps it although the run has its result."""

    folder: Path
    failed: bool = False


@contextmanager
def own_logs(name: str) -> Iterator[Logs]:
    """A new folder for the logs of a run of the model of that name.

    Only its owner can read it. It is removed at the end of a run that raised nothing and
    was not marked as failed, and if no node was started.
    """
    base = _base()
    if base is None:
        logs = Logs(Path(tempfile.mkdtemp(prefix=f"placer-{name}-")))
    else:
        _prune(base)
        logs = Logs(Path(tempfile.mkdtemp(prefix=f"{name}-", dir=base)))
    lock = os.open(logs.folder / _MARK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        # Held by this process alone, and given up when it ends, however it does.
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield logs
        if not logs.failed:
            shutil.rmtree(logs.folder, ignore_errors=True)
    finally:
        if logs.folder.is_dir() and os.listdir(logs.folder) == [_MARK]:
            shutil.rmtree(logs.folder, ignore_errors=True)
        os.close(lock)


def _base() -> Path | None:
    """Where folders of logs lie: in the user's cache, else in the temporary folder, or
    None where both are somebody else's."""
    cache = user_cache()
    temporary = Path(tempfile.gettempdir()) / f"placer-{os.getuid()}"
    return kept(cache and cache / "logs") or kept(temporary)


def _prune(base: Path) -> None:
    """Remove the oldest folders of runs that have ended; never fails."""
    ended = [folder for folder in base.iterdir() if _has_ended(folder)]
    ended.sort(key=_age, reverse=True)
    # One is about to be added.
    for folder in ended[KEPT - 1 :]:
        shutil.rmtree(folder, ignore_errors=True)


def _age(folder: Path) -> float:
    """When the folder last got a log: seconds since the epoch, 0 for one that is gone."""
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def _has_ended(folder: Path) -> bool:
    """Whether a launcher made this folder, and uses it no more."""
    try:
        held = os.open(folder / _MARK, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(held)
    return True
