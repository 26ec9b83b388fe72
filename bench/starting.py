"""Measures the start of a run of many nodes on one machine: how long until its first step,
with which CPU time and memory.

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
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

SPEC = Path(__file__).parents[1] / "specs" / "digits.yaml"
STEPS = 40
TICK = os.sysconf("SC_CLK_TCK")


def launch(build: Path) -> None:
    """Launch a build in this process, and print what its start took."""
    begin = time.monotonic()
    import placer
    from placer.runtime.run.events import Event, State, Step

    measured: dict[str, float] = {}
    states: dict[str, dict[str, float]] = {}

    def watch(event: Event) -> None:
        if isinstance(event, State):
            seconds = round(time.monotonic() - begin, 3)
            states.setdefault(event.node, {}).setdefault(event.state, seconds)
        if isinstance(event, Step) and event.step == 1:
            measured["seconds"] = time.monotonic() - begin
            measured["cpu"] = sum(map(cpu_seconds, processes()))
            measured["pss"] = sum(map(pss, processes()))
        if isinstance(event, Step) and event.step == STEPS // 2:
            measured["later"] = sum(map(pss, processes()))

    placer.launch(build, steps=STEPS, watch=watch)
    if os.environ.get("STATES"):
        print(json.dumps(states, indent=1), file=sys.stderr)
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
    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder) / "build"
        batch = arguments.batch
        command = [sys.executable, "-m", "placer", "compile", SPEC, "--out", build]
        command += ["--nodes", arguments.nodes]
        for data in ("train", "eval"):
            command += ["--set", f"data.{data}.batch={batch}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for name, rounds in (("cold", 1), ("warm", arguments.rounds)):
            environment = {**os.environ, "PLACER_CACHE": f"{folder}/cache"}
            results = []
            for _ in range(rounds):
                done = subprocess.run(
                    [sys.executable, __file__, "--launch", build],
                    env=environment,
                    check=True,
                    stdout=subprocess.PIPE,
                )
                results.append(json.loads(done.stdout))
                print(name, results[-1], flush=True)
            for key in results[0]:
                values = [each[key] for each in results]
                print(f"{name:6}{key:10}{statistics.median(values):10.2f}")


if __name__ == "__main__":
    main()
