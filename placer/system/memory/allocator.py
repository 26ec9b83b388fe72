"""Sets the C library's allocator to keep large buffers.

By default, glibc returns large buffers to the kernel when they are freed. The result of
every jitted call then needs new pages: for 64 MiB, 16,000 page faults and four times the
time. The settings apply to the whole process and cost memory, not time. Small models gain
nothing.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

MIN_STEP_BYTES: Final = 32 << 20
"""The smallest memory of a step, in bytes, for which the settings pay off."""

# From malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
_KEPT: Final = 2**31 - 1
_PAD: Final = 64 << 20


def keep_memory(nbytes: int) -> bool:
    """Make the process keep the memory that it frees, if a step needs `nbytes` or more.
    Call it before JAX is imported. Returns False if nothing was changed: for fewer than
    `MIN_STEP_BYTES`, or without glibc."""
    if nbytes < MIN_STEP_BYTES or not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # not glibc
        return False
    # Use one arena. Otherwise each thread of JAX would start its own, which glibc always
    # trims.
    settings = {_ARENA_MAX: 1, _MMAP_MAX: 0, _TRIM_THRESHOLD: _KEPT, _TOP_PAD: _PAD}
    accepted = [mallopt(name, value) for name, value in settings.items()]
    return all(accepted)
