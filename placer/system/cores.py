"""The cores that this process may use, and the number of XLA threads."""

from __future__ import annotations

import os
from typing import Final

THREADS: Final = ("PJRT_NPROC", "NPROC")
"""The environment variables from which XLA reads its number of threads."""


def usable_cores() -> int:
    """Return the number of cores that this process and its children may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def xla_threads() -> int:
    """Return the number of threads that XLA uses on the CPU. It is set by the
    environment, or is the number of usable cores."""
    for name in THREADS:
        text = os.environ.get(name, "")
        if text.isascii() and text.isdigit() and int(text) > 0:
            return int(text)
    return usable_cores()


def fix_threads() -> None:
    """Fix the cores and the number of threads of this process to their current values.
    Sums in XLA depend on the number of threads, so a checkpoint records it. Call this
    before JAX starts."""
    count = xla_threads()
    if hasattr(os, "sched_setaffinity"):
        # A process that has set its own cores keeps them when its cpuset grows.
        os.sched_setaffinity(0, os.sched_getaffinity(0))
    os.environ[THREADS[0]] = str(count)
