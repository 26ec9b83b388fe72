"""Measures the start of a run of many nodes on one machine: how long until its first step,
with which CPU time and memory. The nodes are forks of one process, or make their imports
themselves; with an empty cache, and with what an earlier run has compiled.

    python bench/starting.py
    python bench/starting.py --nodes worker=2,ps=2 --batch 128 --rounds 5
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

SPEC = Path(__file__).parents[1] / "specs" / "digits.yaml"
STEPS = 200
TICK = os.sysconf("SC_CLK_TCK")
STARTS = {"own imports": "0", "forks": "1"}
"""The values of PLACER_FORK."""


def launch(build: Path) -> None:
    """Launch a build in this process, and print what its start took."""
    begin = time.monotonic()
    import placer
    from placer.runtime.control.events import Event, Step

    measured: dict[str, float] = {}

    def watch(event: Event) -> None:
        if isinstance(event, Step) and event.step == 1:
            measured["seconds"] = time.monotonic() - begin
            measured["CPU s"] = sum(map(cpu_seconds, processes()))
            measured["MB"] = sum(map(pss, processes()))
        if isinstance(event, Step) and event.step == STEPS // 4:
            measured["MB later"] = sum(map(pss, processes()))

    placer.launch(build, steps=STEPS, watch=watch)
    print(json.dumps(measured))


def processes() -> Iterator[int]:
    """Yield this process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parent = int(fields(int(entry.name))[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [os.getpid()]
    for pid in found:
        yield pid
        found.extend(children.get(pid, []))


def fields(pid: int) -> list[str]:
    """Return the fields of a process from its state on; see proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def cpu_seconds(pid: int) -> float:
    with suppress(OSError):
        return sum(map(int, fields(pid)[11:15])) / TICK  # with children that have ended
    return 0.0


def pss(pid: int) -> float:
    """Return the memory of a process in MB, each page divided by those who share it."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def measure(build: Path, variables: Mapping[str, str]) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--launch", build],
        env={**os.environ, **variables},
        check=True,
        stdout=subprocess.PIPE,
    )
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", default="worker=12,ps=8")
    parser.add_argument("--batch", type=int, default=132)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--launch", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.launch:
        launch(arguments.launch)
        return
    results: dict[tuple[str, str], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder) / "build"
        command = [sys.executable, "-m", "placer", "compile", SPEC, "--out", build]
        command += ["--nodes", arguments.nodes]
        for data in ("train", "eval"):
            command += ["--set", f"data.{data}.batch={arguments.batch}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for number in range(arguments.rounds):
            for start, forks in STARTS.items():
                cache = Path(folder) / f"cache {number} {start}"
                variables = {"PLACER_FORK": forks, "PLACER_CACHE": str(cache)}
                for state in ("empty", "kept"):
                    measured = measure(build, variables)
                    results.setdefault((start, state), []).append(measured)
    print(
        f"{arguments.nodes}, load {os.getloadavg()[0]:.1f}: median (lowest to highest)"
    )
    for (start, state), rounds in results.items():
        print(f"{start}, cache {state}")
        for key in rounds[0]:
            values = [each[key] for each in rounds]
            print(
                f"  {key:10}{statistics.median(values):10.2f}"
                f" ({min(values):.2f} to {max(values):.2f})"
            )


if __name__ == "__main__":
    main()
