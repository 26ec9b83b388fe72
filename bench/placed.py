"""Runs of placer's builds, with each worker on a core of its own, as those of the peers."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from cpu_times import CpuTimes
from mode_builds import BUILDS
from on_cores import Process, run_together
from peers import runs
from peers.runs import Measurement

from placer.channel.ports import free_endpoints


@dataclass(frozen=True)
class Bench:
    """A run of a benchmark: the environment of the peers, the folder of specs, and the
    steps of a case that lets the command line choose them."""

    env: Path
    folder: Path
    steps: int | None = None

    def build(self, name: str) -> Path:
        """Compile the build of a case, the first time."""
        out = self.folder / name
        if not out.exists():
            BUILDS[name].compile(self.folder, out)
        return out

    def placer(self, name: str, steps: int, warm: int) -> float:
        """Run a build; return the samples per second of all workers together."""
        return self.measure(name, steps, warm).rate

    def measure(self, name: str, steps: int, warm: int) -> Measurement:
        """Run a build; measure its steps after the first `warm` ones."""
        out, build = self.build(name), BUILDS[name]
        nodes = build.nodes()
        endpoints = ",".join(f"{n}={a}" for n, a in free_endpoints(nodes).items())
        history = self.folder / "history.jsonl"
        history.write_bytes(b"")
        command = [sys.executable, "-m", "placer.command", "run", str(out)]
        command += ["--endpoints", endpoints, "--steps", str(warm + steps)]
        command += ["--history", str(history), "--node"]
        cores = runs.cores_of(build.workers, build.servers)
        times = CpuTimes(lambda: history.read_bytes().count(b"\n"))
        run_together(
            [
                Process([*command, node], core)
                for node, core in zip(nodes, cores, strict=True)
            ],
            times=times,
        )
        lines = [json.loads(line) for line in history.read_text().splitlines()]
        seconds = [line["seconds"] for line in lines if "step" in line]
        batch = build.workers * runs.ROWS[build.workload]
        rate = batch * steps / (seconds[-1] - seconds[warm - 1])
        used = times.between(times.when(warm), times.when(warm + steps))
        return Measurement.of(rate, used, build.workers, steps)
