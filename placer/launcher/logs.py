"""Folders for the logs of runs.

A folder that the user names is always kept. A folder that the launcher creates is kept
only after a failed or interrupted run. These folders have one common parent; when there
are more than `MAX_KEPT` of them, the oldest are removed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from placer.place.node_kinds import NodeId
from placer.plan.folder import check_outside
from placer.system.caches.folder import usable_folder, user_cache
from placer.system.files.regular import open_regular
from placer.system.files.writable import check_can_create

MAX_KEPT: Final = 20
"""The number of log folders of ended runs that are kept."""
_MARKER: Final = ".placer-run"
"""The file that marks a log folder; its launcher holds a lock on it."""


@dataclass(slots=True)
class LogFolder:
    """The folder for the logs of a run.

    Attributes:
        folder: its path.
        is_new: whether it was made for this run, and is removed after a success.
        failed: whether a new one is kept nevertheless.
    """

    folder: Path
    is_new: bool
    failed: bool = False

    def described(self, folder: Path | None = None) -> str:
        """Return what is said of it, or of a folder in it, before the run."""
        removed = " (removed after a successful run)" if self.is_new else ""
        return f"logs in {folder or self.folder}{removed}"

    def outlive_launcher(self) -> None:
        """Keep the folder of a job that goes on if its launcher is killed: it does not
        count as that of an ended run then."""
        (self.folder / _MARKER).unlink(missing_ok=True)


@contextmanager
def log_folder(named: str | Path | None, name: str, build: Path) -> Iterator[LogFolder]:
    """Yield the folder for the logs of a run of the model `name`: `named`, which must be
    outside of the build, or a new one.

    Only the user can read a new one. It is removed at the end if nothing was raised and
    `failed` is not set, and also if no node was started.
    """
    if named is not None:
        check_outside(Path(named), build, "logs to ")
        check_can_create(Path(named))
        yield LogFolder(Path(named), is_new=False)
        return
    base = _logs_root()
    if base is not None:
        _prune(base)
    prefix = f"placer-{name}-" if base is None else f"{name}-"
    logs = LogFolder(Path(tempfile.mkdtemp(prefix=prefix, dir=base)), is_new=True)
    lock = os.open(logs.folder / _MARKER, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        # Only this process has the descriptor, so the lock is released when the process
        # ends, even if it is killed.
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield logs
        if not logs.failed:
            shutil.rmtree(logs.folder, ignore_errors=True)
    finally:
        if logs.folder.is_dir() and os.listdir(logs.folder) == [_MARKER]:
            shutil.rmtree(logs.folder, ignore_errors=True)
        with suppress(OSError):  # it was removed, or has the marker
            (logs.folder / _MARKER).touch(0o600, exist_ok=False)
        os.close(lock)


def log_path(logs: Path, node: str) -> Path:
    """Return the log file of a node, such as `worker-0.log`."""
    return logs / f"{NodeId(node).stem}.log"


def _logs_root() -> Path | None:
    """Return the parent of log folders, in the user's cache or the temporary folder.

    Returns None if both belong to another user.
    """
    cache = user_cache()
    temporary = Path(tempfile.gettempdir()) / f"placer-{os.getuid()}"
    return usable_folder(cache and cache / "logs") or usable_folder(temporary)


def _prune(base: Path) -> None:
    """Remove the oldest log folders of ended runs; never raise."""
    ended: list[tuple[float, Path]] = []
    for folder in base.iterdir():
        # Only the log folder of an ended launcher has a marker without a lock.
        with suppress(OSError), open_regular(folder / _MARKER, follow=False) as marker:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ended.append((folder.stat().st_mtime, folder))
    # One more is about to be created.
    for _, folder in sorted(ended, reverse=True)[MAX_KEPT - 1 :]:
        shutil.rmtree(folder, ignore_errors=True)
