"""Compiles functions to machine code with numba, and keeps the code in the user's cache.

Only this module imports numba, which takes half a second, so it is imported when machine
code is about to run. The code is kept in `kernels` of
`placer.system.caches.folder.user_cache`, or in `NUMBA_CACHE_DIR`. Its key includes the
processor. Without a usable folder, functions are compiled in each process.
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
"""Held while numba compiles, because nodes may be threads of one process."""


def kernels_folder(name: str) -> Path | None:
    """Return the folder `name` for machine code, or None if it cannot be used."""
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
    """Compile a function to machine code that runs without the interpreter lock.

    Args:
        function: a function of arrays and numbers. A change of its file makes numba
            compile it again; a change of a function that it calls does not.
        signatures: the types of its arguments, for each way to call it.
        folder: the folder that keeps the machine code, or None.
        only: True to convert arguments of other types to these types if possible; False
            to compile the function for other types as well.
    """
    with COMPILING:
        if folder is not None:
            before = config.CACHE_DIR
            # numba reads it when a function is decorated.
            config.CACHE_DIR = str(folder)
            try:
                return _jit(function, signatures, only, keep=True)
            except Exception:
                # A full disk or a broken file is ignored, because the cache only saves
                # time.
                pass
            finally:
                config.CACHE_DIR = before
        return _jit(function, signatures, only, keep=False)


def _jit(
    function: Callable[..., Any], signatures: Sequence[Any], only: bool, *, keep: bool
) -> Callable[..., Any]:
    # With fastmath, a result would depend on the alignment of its array.
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
