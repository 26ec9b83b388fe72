"""Kernels as machine code: compiled by numba when first asked for, kept for later runs.

numba is imported here and in `kernels.py` only; it takes half a second, so this module
is imported when a table is about to be updated. What was compiled is kept in `kernels`
of `placer.memory.caches.user_cache`, or where `NUMBA_CACHE_DIR` says; numba tells
processors and its own versions apart. Where nothing can be kept, everything is compiled
each time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numba.types

from placer.memory.caches import kept, user_cache
from placer.tables import kernels

Kernel = Callable[..., None]

types: Any = numba.types
config: Any = numba.config
_compiling = threading.Lock()


def compiled(name: str, arrays: int, sources: int, numbers: int, real: str) -> Kernel:
    """A loop of `kernels.py` for so many arrays, gradients and numbers of a dtype.

    It runs without the interpreter's lock. `real` is float32 or float64; the gradients
    may be read-only.
    """
    with _compiling:  # a node is a thread where all are in one process
        return _compiled(name, arrays, sources, numbers, real)


@cache
def _compiled(name: str, arrays: int, sources: int, numbers: int, real: str) -> Kernel:
    number = getattr(types, real)
    changed = types.Array(number, 1, "C")
    gradient = types.Array(number, 1, "C", readonly=True)
    signature = types.void(
        *[changed] * arrays,
        types.UniTuple(gradient, sources),
        types.UniTuple(number, numbers),
    )
    loop = getattr(kernels, name)
    folder = cache_folder()
    if folder is not None:
        before = config.CACHE_DIR
        config.CACHE_DIR = str(folder)  # read when a function is decorated
        try:
            return _jit(signature, loop, keep=True)
        except Exception:  # a full disk, a broken file: the cache only saves time
            pass
        finally:
            config.CACHE_DIR = before
    return _jit(signature, loop, keep=False)


def _jit(signature: Any, loop: Kernel, *, keep: bool) -> Kernel:
    # fastmath would let the bits depend on where a slice begins.
    made: Kernel = numba.njit(
        [signature], fastmath=False, error_model="numpy", nogil=True, cache=keep
    )(loop)
    return made


def cache_folder() -> Path | None:
    """The folder that machine code is kept in, or None where there is none."""
    if config.CACHE_DIR:
        return kept(Path(config.CACHE_DIR))
    base = user_cache()
    return None if base is None else kept(base / "kernels")
