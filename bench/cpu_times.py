"""CPU times of processes while they run."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

EVERY = 0.05
TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Used:
    """What processes used in some time.

    Attributes:
        seconds: the CPU seconds of each.
        others: how many cores all other programs of the machine used.
    """

    seconds: tuple[float, ...]
    others: float


class CpuTimes:
    """Reads the CPU times of processes, and how far they are, every 50 ms.

    Args:
        progress: returns the number of steps that are done.
    """

    def __init__(self, progress: Callable[[], int] = lambda: 0) -> None:
        self._progress = progress
        self._samples: list[tuple[float, ...]] = []
        self._pids: Sequence[int] = ()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def start(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._thread.start()

    def stop(self) -> None:
        self._ends.set()
        self._thread.join()

    @property
    def steps(self) -> int:
        """The number of steps that were done when it was read last."""
        return int(self._samples[-1][1]) if self._samples else 0

    def when(self, steps: int) -> float:
        """Return the monotonic time when so many steps were done."""
        return next(time for time, done, *_ in self._samples if done >= steps)

    def between(self, begin: float, end: float) -> Used:
        """Return what the processes used between two monotonic times, by linear
        interpolation."""
        times, _, *columns = np.array(self._samples).T
        busy, *seconds = (
            float(np.interp(end, times, each) - np.interp(begin, times, each))
            for each in columns
        )
        return Used(tuple(seconds), (busy - sum(seconds)) / (end - begin))

    def _read(self) -> None:
        seconds = [0.0] * len(self._pids)
        while not self._ends.wait(EVERY):
            for i, pid in enumerate(self._pids):
                with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                    seconds[i] = _seconds_of(pid)
            now = time.monotonic()
            self._samples.append((now, self._progress(), _busy_seconds(), *seconds))


def _seconds_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def _busy_seconds() -> float:
    """Return the CPU seconds of all programs of the machine."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq, *_ = map(
            int, file.readline().split()[1:]
        )
    return (user + nice + system + irq + softirq) / TICK
