"""Turns between processes that need the same thing: one makes it, the others wait."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PATIENCE: Final = 60.0
"""Seconds to wait for another process; a function takes one or two to compile."""
_POLL: Final = 0.02
_GIVEN_UP: Final[set[Path]] = set()
"""Folders whose other process took longer than that."""


@contextmanager
def alone(folder: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Keep other processes from making files of a folder meanwhile: the nodes of a run need
    the same ones at the same time. After `patience` seconds of another process, which
    may be stopped, or where nothing can be locked, go on without; and from then on
    without waiting."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield
        return
    try:
        wait_for_turn(lambda: _lock(descriptor), folder, patience)
        yield
    finally:
        os.close(descriptor)


def wait_for_turn(
    lock: Callable[[], bool], folder: Path, patience: float = PATIENCE
) -> bool:
    """Call `lock` until it returns True: no other process makes the same file of a folder.

    Return False after `patience` seconds of another process, which may be stopped; and
    from then on without waiting.
    """
    until = time.monotonic() + patience
    while not lock():
        if folder in _GIVEN_UP:
            return False
        if time.monotonic() >= until:
            _GIVEN_UP.add(folder)
            return False
        time.sleep(_POLL)
    return True


def _lock(descriptor: int) -> bool:
    """Lock a file until it is closed; return False if another process has locked it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # its file system has no locks
    return True
