"""The C library's allocator, told to keep large buffers before JAX asks for any.

glibc gives memory of that size back to the kernel when it is freed, so that the result
of every jitted call comes with new pages: for 64 MiB, 16,000 page faults and four times
the time. What is set here holds for the whole process and costs memory, not time; small
models gain nothing by it.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

FROM: Final = 32 << 20
"""Bytes of a step from which it pays."""

# Of malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
_KEPT: Final = 2**31 - 1
_PAD: Final = 64 << 20


def keep_memory(nbytes: int) -> bool:
    """Let the process keep what it frees, if a step needs `nbytes` and that is much.

    To be called before JAX is imported. False where it was not done: for a small step,
    and with another C library than glibc.
    """
    if nbytes < FROM or not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # not glibc
        return False
    # One arena: JAX's threads would each begin one of their own, which trims itself.
    settings = {_ARENA_MAX: 1, _MMAP_MAX: 0, _TRIM_THRESHOLD: _KEPT, _TOP_PAD: _PAD}
    taken = [mallopt(name, value) for name, value in settings.items()]
    return all(taken)
