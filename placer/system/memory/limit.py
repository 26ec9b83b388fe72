"""The memory that this process can still allocate."""

from __future__ import annotations

import os
from pathlib import Path

_OWN_CGROUP = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")


def available_nbytes() -> int:
    """Return the free memory in bytes, within the limits of the process's cgroups.
    Memory that can be freed counts as free. If the system does not report it, return
    the memory of the machine."""
    limits = [_of_machine()]
    try:
        lines = _OWN_CGROUP.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("0::/"):  # version 2
            own = Path(line.removeprefix("0::/"))
            for folder in (own, *own.parents):
                limits += _of_cgroup(_CGROUPS / folder)
    return max(0, min(limits))


def _of_machine() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # The system is not Linux.
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _of_cgroup(folder: Path) -> list[int]:
    """Return the free bytes of a cgroup in a list, which is empty without a limit."""
    try:
        most = (folder / "memory.max").read_text().strip()
        if most == "max":
            return []
        used = int((folder / "memory.current").read_text())
        stat = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return []  # The root cgroup, or cgroups are not mounted here.
    cached = sum(int(s.split()[1]) for s in stat if s.startswith("inactive_file "))
    return [int(most) - used + cached]
