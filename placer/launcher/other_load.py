"""Measures how much CPU time other programs use during a run on this machine."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from placer.runtime.control.events import State

MIN_SECONDS: Final = 2.0
"""The shortest time over which the CPU time of other programs is measured."""
_STATES: Final = Path("/proc/stat")
_BUSY: Final = (0, 1, 2, 5, 6)
"""The columns of user, nice, system, irq and softirq in a line of a core."""


@dataclass(slots=True)
class _Clock:
    """CPU seconds at the first and at the last time of a measurement."""

    first_time: float
    first: float
    time: float = 0.0
    seconds: float = 0.0

    @property
    def is_long(self) -> bool:
        return self.time - self.first_time >= MIN_SECONDS

    @property
    def cores(self) -> float:
        """The mean number of cores in use."""
        return (self.seconds - self.first) / (self.time - self.first_time)


class OtherLoad:
    """Compares the CPU time of this machine with the CPU time of the nodes."""

    def __init__(self) -> None:
        self._clocks: dict[int, _Clock] = {}
        self._machine: _Clock | None = None

    def add(self, state: State) -> None:
        """Add the CPU time of the process of a node that runs on this machine."""
        now, busy = time.monotonic(), busy_seconds()
        if busy is None:
            return
        self._machine = _later(self._machine, now, busy)
        own = os.getpid()
        for process, seconds in (
            (state.process, state.cpu_seconds),
            (own, time.process_time()),
        ):
            clock = self._clocks.get(process)
            self._clocks[process] = _later(clock, now, seconds)

    def cores(self) -> float | None:
        """Return the mean number of cores that other programs used; None if the run was
        too short, or if this system does not count the time of its cores."""
        if self._machine is None or not self._machine.is_long:
            return None
        used = sum(clock.cores for clock in self._clocks.values() if clock.is_long)
        return round(max(0.0, self._machine.cores - used), 2)


def _later(clock: _Clock | None, now: float, seconds: float) -> _Clock:
    if clock is None:
        return _Clock(now, seconds)
    clock.time, clock.seconds = now, seconds
    return clock


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
