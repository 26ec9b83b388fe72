"""Turns the garbage collector off for a while."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def garbage_collection_off() -> Iterator[None]:
    """Disable the garbage collector.

    Graphs are many small objects, but few cycles. Collections would be slow and useless.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
