"""Creates and removes the folders for the logs of runs.

A folder that the user names is always kept. A folder that the launcher creates is kept
only after a failed or interrupted run. These folders share one parent, which keeps the
`MAX_KEPT` newest ones.
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
"""The number of log folders of ended runs to keep."""
_MARKER: Final = ".placer-run"
"""The file that marks a log folder. The launcher of a run holds a lock on it."""


@dataclass(slots=True)
class LogFolder:
    """The folder for the logs of a run.

    Attributes:
        folder: its path.
        is_new: True if it was created for this run and is removed after a success.
        failed: True if a new folder is kept in spite of that.
    """

    folder: Path
    is_new: bool
    failed: bool = False

    def described(self, folder: Path | None = None) -> str:
        """Return a message that names the folder, or `folder` in it, to print before the
        run."""
        removed = " (removed after a successful run)" if self.is_new else ""
        return f"logs in {folder or self.folder}{removed}"

    def outlive_launcher(self) -> None:
        """Keep the folder of a job that keeps running when its launcher is killed. The
        folder then does not count as the folder of an ended run."""
        (self.folder / _MARKER).unlink(missing_ok=True)


@contextmanager
def log_folder(named: str | Path | None, name: str, build: Path) -> Iterator[LogFolder]:
    """Yield the folder for the logs of a run of the model `name`.

    The folder `named` must be outside the build; None creates a new folder, readable only
    by the user. A new folder is removed at the end, unless an exception was raised after
    the start of a node, or `failed` is set.
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
        with suppress(OSError):  # The folder was removed, or still contains the marker.
            (logs.folder / _MARKER).touch(0o600, exist_ok=False)
        os.close(lock)


def log_path(logs: Path, node: str) -> Path:
    """Return the log file of a node, such as `worker-0.log`."""
    return logs / f"{NodeId(node).stem}.log"


def _logs_root() -> Path | None:
    """Return the parent of log folders, or None if it would belong to another user."""
    cache = user_cache()
    temporary = Path(tempfile.gettempdir()) / f"placer-{os.getuid()}"
    return usable_folder(cache and cache / "logs") or usable_folder(temporary)


def _prune(base: Path) -> None:
    """Remove the oldest log folders of ended runs; never raise."""
    ended: list[tuple[float, Path]] = []
    for folder in base.iterdir():
        # If the lock is free, the launcher of this log folder has ended.
        with suppress(OSError), open_regular(folder / _MARKER, follow=False) as marker:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ended.append((folder.stat().st_mtime, folder))
    # Another folder is about to be created.
    for _, folder in sorted(ended, reverse=True)[MAX_KEPT - 1 :]:
        shutil.rmtree(folder, ignore_errors=True)
