"""A folder of compiled programs, of which processes that run at the same time compile each
one once: the first process compiles it, the others wait, and load what it has made.

JAX's own cache does not wait. It also writes a file in place, so that another process can
read half of it, and never replaces a damaged one. The files have the same names and
contents.
"""

from __future__ import annotations

import fcntl
import os
import threading
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from placer.system.caches.turns import PATIENCE, wait_for_turn

_SUFFIX: Final = "-cache"
_LOCKS: Final = "locks"
"""An empty file, of which a byte is locked for each program that is being compiled."""
_COMPILED: Final = "/jax/core/compile/backend_compile_duration"
"""The event at the end of a compilation, or of its failure."""


class SharedPrograms:
    """The programs of a folder, as JAX reads and writes them.

    A thread that does not find a program has it to itself until it puts it there, or has
    failed to; a process that ends leaves nothing locked.
    """

    def __init__(self, folder: Path, patience: float = PATIENCE) -> None:
        self._path = folder  # JAX shows it
        self._patience = patience
        self._mine = threading.local()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._locks = os.open(folder / _LOCKS, flags, 0o600)

    def get(self, key: str) -> bytes | None:
        """Return a compiled program, or None: the caller compiles it then."""
        self.end_turn()
        found = self._read(key)
        if found is None and wait_for_turn(
            lambda: self._lock(key), self._path, self._patience
        ):
            found = self._read(key)  # another process may have put it there
            if found is not None:
                self.end_turn()
        return found

    def put(self, key: str, value: bytes) -> None:
        """Keep a compiled program, in place of what is there."""
        temporary = self._path / f".{uuid4().hex}{_SUFFIX}"
        try:
            temporary.write_bytes(value)
            temporary.replace(self._file(key))
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            self.end_turn()

    def end_turn(self) -> None:
        """Let other processes compile what this thread was about to compile."""
        at = vars(self._mine).pop("at", None)
        if at is not None:
            with suppress(OSError):
                fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, at)

    def _lock(self, key: str) -> bool:
        at = int.from_bytes(sha256(key.encode()).digest()[:7])
        try:
            fcntl.lockf(self._locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, at)
        except (BlockingIOError, PermissionError):  # another process has locked it
            return False
        except OSError:
            return True  # its file system has no locks
        self._mine.at = at
        return True

    def _read(self, key: str) -> bytes | None:
        try:
            return self._file(key).read_bytes()
        except FileNotFoundError:
            return None

    def _file(self, key: str) -> Path:
        return self._path / f"{key}{_SUFFIX}"


def share_programs() -> None:
    """Let JAX use `SharedPrograms` for the folder that it is configured with, unless it
    bounds its size, or compares its contents."""
    import jax

    try:  # there is no public way to another cache; without it JAX's own one is used
        from jax._src import compilation_cache

        internal: Any = compilation_cache
        open_files = internal.get_file_cache
    except (ImportError, AttributeError):
        return
    config: Any = jax.config  # it has no type hints
    if getattr(open_files, "shares", False):
        return

    def open_programs(path: str) -> tuple[Any, str] | None:
        if (
            config.jax_compilation_cache_max_size != -1
            or config.jax_compilation_cache_check_contents
            or "://" in path
        ):
            return open_files(path)  # type: ignore[no-any-return]
        programs = SharedPrograms(Path(path))

        def end_turn(event: str, duration_secs: float, **_: str | int) -> None:
            if event == _COMPILED:
                programs.end_turn()

        jax.monitoring.register_event_duration_secs_listener(end_turn)
        return programs, path

    open_programs.shares = True  # type: ignore[attr-defined]
    internal.get_file_cache = open_programs
