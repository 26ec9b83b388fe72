"""Lets one process make a file while other processes that need the file wait."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PATIENCE: Final = 60.0
"""Seconds to wait for another process. A function takes one or two seconds to compile."""
_POLL: Final = 0.02
_GIVEN_UP: Final[set[Path]] = set()
"""Folders in which the wait for another process took too long."""


@contextmanager
def alone(folder: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Keep other processes from making files of a folder during the context.

    The nodes of a run need the same files at the same time. The context starts without
    the lock after `patience` seconds, because the other process may be stopped, and where
    locks are not supported. After that, it does not wait for this folder again.
    """
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
    """Call `lock` until it returns True, which means that this process may make the
    file. Return False after `patience` seconds, because the other process may be
    stopped; after that, do not wait for this folder again."""
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
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # The file system does not support locks.
    return True
