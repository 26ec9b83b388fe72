"""Compile kernels to machine code with numba, and cache it for later runs.

Only this module and `kernels.py` import numba. The import takes half a second, so this
module is imported when a table is about to be updated. Machine code is cached in the
folder `kernels` of `placer.memory.caches.user_cache`, or in `NUMBA_CACHE_DIR`; numba
distinguishes processors and its own versions. Without a cache folder every run
compiles.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numba.types

from placer.memory.caches import usable_folder, user_cache
from placer.tables import kernels

Kernel = Callable[..., None]

types: Any = numba.types
config: Any = numba.config
_compiling = threading.Lock()


def compile_kernel(
    name: str, arrays: int, sources: int, coefficients: int, dtype: str
) -> Kernel:
    """Return a kernel of `kernels.py`, compiled for one signature.

    Args:
        name: the name of the kernel's function.
        arrays: the number of arrays that the kernel changes.
        sources: the number of gradients that it sums; they may be read-only.
        coefficients: the number of its coefficients.
        dtype: `float32` or `float64`, of arrays, gradients and coefficients.

    The kernel releases the interpreter's lock. May be called from any thread.
    """
    with _compiling:  # nodes of one process are threads, and may ask at the same time
        return _compile_once(name, arrays, sources, coefficients, dtype)


@cache
def _compile_once(
    name: str, arrays: int, sources: int, coefficients: int, dtype: str
) -> Kernel:
    scalar = getattr(types, dtype)
    changed = types.Array(scalar, 1, "C")
    gradient = types.Array(scalar, 1, "C", readonly=True)
    signature = types.void(
        *[changed] * arrays,
        types.UniTuple(gradient, sources),
        types.UniTuple(scalar, coefficients),
    )
    loop = getattr(kernels, name)
    folder = cache_folder()
    if folder is not None:
        previous = config.CACHE_DIR
        config.CACHE_DIR = str(folder)  # read when a function is decorated
        try:
            return _jit(signature, loop, keep=True)
        except Exception:  # a full disk, a broken file: the cache only saves time
            pass
        finally:
            config.CACHE_DIR = previous
    return _jit(signature, loop, keep=False)


def _jit(signature: Any, loop: Kernel, *, keep: bool) -> Kernel:
    # fastmath would let the bits of a result depend on where a slice starts.
    kernel: Kernel = numba.njit(
        [signature], fastmath=False, error_model="numpy", nogil=True, cache=keep
    )(loop)
    return kernel


def cache_folder() -> Path | None:
    """Return the folder that machine code is cached in, or None if there is none."""
    if config.CACHE_DIR:
        return usable_folder(Path(config.CACHE_DIR))
    base = user_cache()
    return None if base is None else usable_folder(base / "kernels")
