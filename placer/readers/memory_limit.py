"""How much memory this process may still take."""

from __future__ import annotations

import os
from pathlib import Path

_OWN = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")


def available() -> int:
    """Bytes that are free or can be freed, on the machine and in the process's cgroup;
    all of the machine's where the system does not tell."""
    found = [_of_machine()]
    try:
        lines = _OWN.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("0::/"):  # version 2
            own = Path(line.removeprefix("0::/"))
            for folder in (own, *own.parents):
                found += _of_cgroup(_CGROUPS / folder)
    return max(0, min(found))


def _of_machine() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _of_cgroup(folder: Path) -> list[int]:
    """What a cgroup leaves, if it has a limit; files that it caches can be freed."""
    try:
        most = (folder / "memory.max").read_text().strip()
        if most == "max":
            return []
        used = int((folder / "memory.current").read_text())
        stat = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return []  # the root, or not mounted here
    cached = sum(int(s.split()[1]) for s in stat if s.startswith("inactive_file "))
    return [int(most) - used + cached]
