"""Functions compiled to machine code by numba, which is kept between runs.

Machine code is kept in `kernels` of `placer.memory.caches.user_cache`, or in
`NUMBA_CACHE_DIR`; numba tells processors and its own versions apart. Where nothing can be
kept, everything is compiled each time. numba takes half a second to import, so this
module is imported when a table is about to be used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, update_wrapper
from hashlib import sha256
from pathlib import Path
from typing import Any

import numba

from placer.memory.caches import usable_folder, user_cache

config: Any = numba.config
njit: Any = numba.njit
compiling = threading.RLock()
"""Held while something is compiled."""


class Compiled:
    """A function that is compiled when it is first called, for the types of that call,
    and runs without the interpreter lock.

    Other functions of its kind that it calls are decorated by `register_jitable`.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._python = function
        self._machine: Any = None
        update_wrapper(self, function)

    def __call__(self, *args: Any) -> Any:
        if self._machine is None:
            self._compile(args)
        return self._machine(*args)

    def _compile(self, args: tuple[Any, ...]) -> None:
        signature = tuple(map(numba.typeof, args))

        def compile_(keep: bool) -> Any:
            machine = _jit(self._python, keep)
            machine.compile(signature)
            return machine

        with compiling:  # in one process the nodes are threads
            if self._machine is None:
                self._machine = _with_cache(compile_)


compiled = Compiled
"""Decorates a function: see `Compiled`."""


def compile_for(signature: Any, function: Callable[..., Any]) -> Any:
    """Compile a function for one signature of numba, to which arguments are converted."""
    with compiling:
        return _with_cache(lambda keep: _jit(function, keep, [signature]))


def _with_cache(compile_: Callable[[bool], Any]) -> Any:
    """Compile with the cache, or without it where it cannot be used."""
    folder = cache_folder()
    if folder is not None:
        try:
            with _caching_in(folder):
                return compile_(True)
        except Exception:  # a full disk, a broken file: the cache only saves time
            pass
    return compile_(False)


def _jit(function: Callable[..., Any], keep: bool, *signatures: Any) -> Any:
    # With fastmath the bits would depend on where a slice starts.
    return njit(
        *signatures, fastmath=False, error_model="numpy", nogil=True, cache=keep
    )(function)


@contextmanager
def _caching_in(folder: Path) -> Iterator[None]:
    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder)  # read when a function is decorated
    try:
        yield
    finally:
        config.CACHE_DIR = before


def cache_folder() -> Path | None:
    """The folder that machine code is kept in, or None where nothing can be kept."""
    base = user_cache()
    if config.CACHE_DIR:
        parent: Path | None = Path(config.CACHE_DIR)
    else:
        parent = None if base is None else base / "kernels"
    if parent is None or usable_folder(parent) is None:
        return None
    return usable_folder(parent / _digest())


@cache
def _digest() -> str:
    """Changes whenever a function does that others are compiled with: numba looks only
    at the file of a function itself."""
    sources = sorted(Path(__file__).parent.rglob("*.py"))
    return sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
