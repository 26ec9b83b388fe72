"""Delays the garbage collector in a process of the command line.

Almost all objects that such a process creates by imports, tracing and compilation stay
until its end: fewer than one in fifty becomes garbage. Python's collector visits each
object several times, which takes two fifths of the time until the first step.
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
    """Pause the garbage collector until `begin_collection`, or the end of the process.
    Use it only in a process of placer, which does not return to code of the user."""
    global _is_paused
    _is_paused = True
    gc.disable()


def begin_collection() -> None:
    """Restart the garbage collector after `pause_collection`. The collector then skips
    objects that already exist. Without a paused collector, nothing happens."""
    global _is_paused
    if _is_paused:
        _is_paused = False
        _FILES.update(_seen_files())
        gc.freeze()
        gc.enable()


def open_files() -> Iterator[io.IOBase]:
    """Yield the open files of this process, and possibly some closed ones. Files that
    were open before another call of `gc.freeze` are missing."""
    yield from [*_FILES]
    yield from _seen_files()


def _seen_files() -> list[io.IOBase]:
    objects = gc.get_objects()
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, io.IOBase)}
    return [each for each in objects if type(each) in kinds]
