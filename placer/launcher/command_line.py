"""Changes the command line of this process, as `ps` and /proc/PID/cmdline show it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_ARG_START: Final = 45
"""The position of the field arg_start in /proc/PID/stat, after the process name; see
proc(5)."""


def show_command_line(words: Sequence[str]) -> bool:
    """Show another command line for this process, a fork of a process with a longer
    one. Return False without a change if the new command line does not fit."""
    try:
        status = Path("/proc/self/stat").read_text()
    except OSError:
        return False
    fields = status.rpartition(")")[2].split()
    start, end = map(int, fields[_ARG_START : _ARG_START + 2])
    shown = b"".join(os.fsencode(word) + b"\0" for word in words)
    if not start or len(shown) > end - start:
        return False
    # Only this process and the system read these bytes.
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, shown, len(shown))
    return True
