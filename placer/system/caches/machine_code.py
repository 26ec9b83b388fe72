"""Functions as machine code, compiled by numba and kept in the user's cache.

numba is imported here only; it takes half a second, so this module is imported when
machine code is about to run. Machine code is kept in `kernels` of
`placer.system.caches.folder.user_cache`, or in `NUMBA_CACHE_DIR`; its key tells processors
apart. Where nothing can be kept, everything is compiled each time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numba

from placer.system.caches.folder import usable_folder, user_cache
from placer.system.caches.kept_code import KeptCode

config: Any = numba.config
COMPILING = threading.RLock()
"""Held while numba compiles: in one process the nodes are threads."""


def kernels_folder(name: str) -> Path | None:
    """Return the folder `name` of the machine code that is kept, or None where nothing
    can be kept."""
    base = user_cache()
    if config.CACHE_DIR:
        parent: Path | None = Path(config.CACHE_DIR)
    else:
        parent = None if base is None else base / "kernels"
    if parent is None or usable_folder(parent) is None:
        return None
    return usable_folder(parent / name)


def compile_function(
    function: Callable[..., Any],
    signatures: Sequence[Any],
    folder: Path | None,
    *,
    only: bool = True,
) -> Callable[..., Any]:
    """Return a function as machine code, which runs without the interpreter lock.

    Args:
        function: a function of arrays and numbers. numba compiles it again if its file
            has changed, but not if one that it calls has.
        signatures: the types of its arguments, for each way to call it.
        folder: where the machine code is kept, if it is.
        only: whether arguments of other types are converted to these, if that is
            possible; else the function is compiled for them, too.
    """
    with COMPILING:
        if folder is not None:
            before = config.CACHE_DIR
            config.CACHE_DIR = str(folder)  # read when a function is decorated
            try:
                return _jit(function, signatures, only, keep=True)
            except Exception:  # a full disk, a broken file: the cache only saves time
                pass
            finally:
                config.CACHE_DIR = before
        return _jit(function, signatures, only, keep=False)


def _jit(
    function: Callable[..., Any], signatures: Sequence[Any], only: bool, *, keep: bool
) -> Callable[..., Any]:
    # With fastmath the bits would depend on where a slice starts.
    compiled: Any = numba.njit(
        fastmath=False,
        error_model="numpy",
        nogil=True,
        cache=keep,
    )(function)
    alone: AbstractContextManager[None] = nullcontext()
    if keep:
        cache = compiled._cache
        cache._cache_file = files = KeptCode.in_place_of(cache._cache_file)
        alone = files.alone()
    with alone:
        for signature in signatures:
            compiled.compile(signature)
    if only:
        compiled.disable_compile()
    machine_code: Callable[..., Any] = compiled
    return machine_code
