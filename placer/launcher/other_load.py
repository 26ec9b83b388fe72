"""Measures how much CPU time other programs use during a run on this machine."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from placer.runtime.control.events import State

MIN_SECONDS: Final = 2.0
"""The shortest time over which the load of other programs is measured."""
INTERVAL: Final = 0.5
"""Seconds between two readings of the machine's CPU time, which are slow with many cores."""
_STATES: Final = Path("/proc/stat")
_BUSY: Final = (0, 1, 2, 5, 6)
"""The columns of user, nice, system, irq and softirq in a line of a core."""


class OtherLoad:
    """Compares the CPU time of this machine with the CPU time of the nodes, from the first
    report of a node to the last one."""

    def __init__(self) -> None:
        self._begin: tuple[float, float] | None = None
        self._end = 0.0, 0.0
        self._next = 0.0
        self._before: dict[int, float] = {}
        self._after: dict[int, float] = {}

    def add(self, state: State) -> None:
        """Add the CPU time of the process of a node that runs on this machine."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + INTERVAL
            if (busy := busy_seconds()) is None:
                return
            self._end = now, busy
        self._after[os.getpid()] = time.process_time()
        self._after[state.process] = state.cpu_seconds
        if self._begin is None and self._end[1]:
            # The other nodes start later.
            self._begin, self._before = self._end, {**self._after}

    def cores(self) -> float | None:
        """Return the mean number of cores that other programs used; None if the run was
        too short, or if this system does not count the time of its cores."""
        if self._begin is None:
            return None
        seconds, busy = (
            end - begin for end, begin in zip(self._end, self._begin, strict=True)
        )
        if seconds < MIN_SECONDS:
            return None
        own = sum(
            each - self._before.get(process, 0.0)
            for process, each in self._after.items()
        )
        return round(max(0.0, (busy - own) / seconds), 2)


def busy_seconds() -> float | None:
    """Return the CPU seconds that all programs have used on the cores that this process
    may use; None if the system does not count them."""
    try:
        lines = _STATES.read_text().splitlines()
    except OSError:
        return None
    cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    ticks = 0
    for line in lines:
        name, *counts = line.split()
        if name in cores:
            ticks += sum(int(counts[column]) for column in _BUSY)
    return ticks / os.sysconf("SC_CLK_TCK")
