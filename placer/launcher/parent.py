"""Ends a process together with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
"""From linux/prctl.h."""

_BECOME: Final = f"""\
import ctypes, os, signal, sys
signal.pthread_sigmask(signal.SIG_SETMASK, ())
ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, signal.SIGKILL)  # exec keeps it
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def end_with_parent() -> None:
    """Let the system kill this process when its parent ends, even while it is stopped.
    Do nothing on systems without this feature. Raises OSError if the system refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl") and libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def with_parent(command: Sequence[str]) -> list[str]:
    """Return a command that runs `command` and is killed when the calling thread ends.

    `command` is an absolute path with arguments. No signal is blocked in the process. A
    separate Python process makes the settings and executes `command`, because only exec
    is safe after the fork of a process with threads.
    """
    first = [sys.executable, "-I", "-S", "-c", _BECOME, str(os.getpid())]
    return [*first, *command]
