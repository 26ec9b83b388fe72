"""A folder of compiled programs that lets concurrent processes compile each program once.

The first process compiles the program; the others wait and load the result. JAX's own
cache does not wait. It also writes files in place, so that another process can read half
a file, and it never replaces a damaged file. The files here have the same names and
contents as in JAX's cache.
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
"""An empty file with one locked byte for each program that is being compiled."""
_COMPILED: Final = "/jax/core/compile/backend_compile_duration"
"""The event at the end of a compilation, also a failed one."""


class SharedPrograms:
    """The programs of a folder, with the interface that JAX uses to read and write
    them. If a thread does not find a program, other processes wait until it stores the
    program or fails. If the process ends, its locks are released."""

    def __init__(self, folder: Path, patience: float = PATIENCE) -> None:
        self._path = folder  # JAX shows this attribute in messages.
        self._patience = patience
        self._mine = threading.local()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._locks = os.open(folder / _LOCKS, flags, 0o600)

    def get(self, key: str) -> bytes | None:
        """Return a compiled program, or None if the caller must compile it."""
        self.end_turn()
        found = self._read(key)
        if found is None and wait_for_turn(
            lambda: self._lock(key), self._path, self._patience
        ):
            # Another process may have stored the program meanwhile.
            found = self._read(key)
            if found is not None:
                self.end_turn()
        return found

    def put(self, key: str, value: bytes) -> None:
        """Store a compiled program, in place of an older file."""
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
        """Let other processes compile the program that this thread was about to compile."""
        at = vars(self._mine).pop("at", None)
        if at is not None:
            with suppress(OSError):
                fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, at)

    def _lock(self, key: str) -> bool:
        at = int.from_bytes(sha256(key.encode()).digest()[:7])
        try:
            fcntl.lockf(self._locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, at)
        except (BlockingIOError, PermissionError):  # Another process holds the lock.
            return False
        except OSError:
            return True  # The file system does not support locks.
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
    """Let JAX use `SharedPrograms` for its configured cache folder. JAX's own cache stays
    if JAX is configured to limit its size or to compare its contents."""
    import jax

    try:
        # JAX has no public way to replace its cache. If this fails, JAX uses its own
        # cache.
        from jax._src import compilation_cache

        internal: Any = compilation_cache
        open_files = internal.get_file_cache
    except (ImportError, AttributeError):
        return
    config: Any = jax.config  # `config` has no type hints.
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
