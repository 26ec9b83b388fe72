"""Reads the first rows of a `python:` stream, to check them."""

from __future__ import annotations

from contextlib import closing
from threading import Event

from placer.readers.streams.lane_source import LaneSource
from placer.readers.streams.mark import Mark
from placer.system.owned_threads import OwnedThreads


def read_first_block(source: LaneSource, seconds: float) -> int | None:
    """Return the number of rows in the first block of lane 0 that has rows.

    It is 0 if the lane ends without rows, and None if it gives none for `seconds`. The lane is
    read up to the first mark after the block, for the rest of the time.

    Raises:
        DataError: if a block does not fit the inputs.
        RunError: if the function raises, or the state of a mark is not JSON.
    """
    found: list[int] = []
    is_over, threads = Event(), OwnedThreads()

    def read() -> None:
        with closing(source.read(0, None)) as items:
            for item in items:
                rows = 0 if isinstance(item, Mark) else len(next(iter(item.values())))
                if is_over.is_set() or (found and isinstance(item, Mark)):
                    return
                if rows:
                    found.append(rows)
        found.append(0)

    threads.begin(read, "placer first block")
    threads.join(seconds)
    is_over.set()
    threads.check()
    return found[0] if found else None
