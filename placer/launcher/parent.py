"""The end of a process with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
"""From linux/prctl.h."""


def end_with_parent() -> None:
    """Let the system kill this process when its parent has ended, also while this
    process is stopped. Raises OSError; does nothing where there is no such call."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl") and libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
