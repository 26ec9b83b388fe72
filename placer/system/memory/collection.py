"""When the garbage collector begins, in a process of the command line.

What such a process imports, traces and compiles stays until its end, and less than one in
fifty of these objects is ever garbage. Python's collector looks at each of them several
times, which takes two fifths of the time until the first step.
"""

from __future__ import annotations

import gc
import io
import weakref
from collections.abc import Iterator

_is_paused = False
_FILES: weakref.WeakSet[io.IOBase] = weakref.WeakSet()
"""The files that were open when the collection began."""


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
        _FILES.update(_seen_files())
        gc.freeze()
        gc.enable()


def open_files() -> Iterator[io.IOBase]:
    """Yield the files of this process, and perhaps others that are closed; not those that
    were open before `gc.freeze` was called elsewhere."""
    yield from [*_FILES]
    yield from _seen_files()


def _seen_files() -> list[io.IOBase]:
    """Return the files among the objects that the collector looks at."""
    return [each for each in gc.get_objects() if issubclass(type(each), io.IOBase)]
