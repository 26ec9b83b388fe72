"""When the garbage collector begins, in a process of the command line.

What such a process imports, traces and compiles stays until its end, and less than one in
fifty of these objects is ever garbage. Python's collector looks at each of them several
times, which takes two fifths of the time until the first step.
"""

from __future__ import annotations

import gc

_is_paused = False


def pause_collection() -> None:
    """Collect nothing until `begin_collection`, or the end of the process.

    For a process that belongs to placer: it does not return to code of the user.
    """
    global _is_paused
    _is_paused = True
    gc.disable()


def begin_collection() -> None:
    """Collect garbage again after `pause_collection`, without another look at the objects
    that exist now. Does nothing in other processes."""
    global _is_paused
    if _is_paused:
        _is_paused = False
        gc.freeze()
        gc.enable()
