"""Measures the CPU time and the memory of a run that waits for the next file of a stream.

The model is that of streams.py, with two workers and two servers. Once all files are trained, the
processes of the run, with the launcher, are measured each second.

    python bench/waiting.py FOLDER                  # ten minutes
    python bench/waiting.py FOLDER --seconds 60
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from streams import write_inputs

OWN: Final = ("RssAnon:", "RssShmem:")
"""Memory that is no part of a file, which other processes may share."""
SETTLES: Final = 20.0
"""Seconds from the last checkpoint until the measurement."""


def processes(root: int) -> list[int]:
    """Return a process and all that it has started."""
    found = [root]
    for process in found:
        for task in Path(f"/proc/{process}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def measure(found: list[int]) -> tuple[float, float]:
    """Return the CPU time of processes in seconds, and their own memory in MiB."""
    ticks, memory = 0, 0
    for process in found:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
        status = Path(f"/proc/{process}/status").read_text().splitlines()
        memory += sum(int(r.split()[1]) for r in status if r.startswith(OWN))
    return ticks / os.sysconf("SC_CLK_TCK"), memory / 1024


def main() -> None:
    """Measure what the module describes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=600.0)
    arguments = parser.parse_args()
    folder = arguments.folder
    write_inputs(folder, 2, 50_000, in_memory=False)
    command = [sys.executable, "-m", "placer", "train", "stream.yaml", "--quiet"]
    command += ["--checkpoint", "kept", "--resume", "kept", "--out", "waiting"]
    run = subprocess.Popen(command, cwd=folder)
    while len(list((folder / "kept").glob("step-*"))) < 2:
        assert run.poll() is None
        time.sleep(0.1)
    time.sleep(SETTLES)
    found = processes(run.pid)
    begin, (before, _) = time.monotonic(), measure(found)
    memories = []
    while (now := time.monotonic()) < begin + arguments.seconds:
        time.sleep(1.0)
        if now > begin + arguments.seconds / 2:
            memories.append(measure(found)[1])
    passed = time.monotonic() - begin
    used = measure(found)[0] - before
    run.send_signal(signal.SIGTERM)
    run.wait()
    print(
        f"{len(found)} processes, {passed:.0f} s: {used:.2f} s of CPU,"
        f" {100 * used / passed:.2f} % of a core; memory in the second half"
        f" {min(memories):.1f} to {max(memories):.1f} MiB"
    )


if __name__ == "__main__":
    main()
