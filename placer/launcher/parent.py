"""The end of a process with its parent."""

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
    """Let the system kill this process when its parent has ended, also while this
    process is stopped. Raises OSError; does nothing where there is no such call."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl") and libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def with_parent(command: Sequence[str]) -> list[str]:
    """Return a command that becomes `command`, an absolute path with arguments: the system
    kills it when the thread of this process ends that has started it. No signal is blocked
    in it.

    It is run by a process of its own: after a fork of a process with threads, only exec is
    safe.
    """
    first = [sys.executable, "-I", "-S", "-c", _BECOME, str(os.getpid())]
    return [*first, *command]
