"""Runs many steps in several modes, and shows the memory, the descriptors and the threads of
each node's process while they run.

A leak of a run shows as a number that grows with the steps. Each mode runs with checkpoints, so
that their files and threads are part of it. A process may grow at its beginning, until its
caches and buffers have their size: the least numbers of the second quarter of the steps are
compared with those of the last one, which a file that is open for a moment does not change.

    python bench/soak.py FOLDER                        # 20,000 steps of each mode
    python bench/soak.py FOLDER digits_geo --steps 2000
    python bench/soak.py FOLDER --json soak.json

The status is 1 where a process has more descriptors or threads in the last quarter, or where its
memory has grown by more than `--grown` MiB.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

import placer
from placer.channel.ports import free_endpoints
from placer.plan.plan import read_plan

SPECS = Path(__file__).parent.parent / "specs"
MODES = ("digits", "digits_async", "digits_geo", "word2vec_sparse")
FOR_EVER = {"train.epochs": 1_000_000}
MIB = 2**20


@dataclass(frozen=True)
class Sample:
    """The numbers of one process after some steps.

    Attributes:
        steps: the steps that were done.
        memory: the resident memory that no other process shares, in MiB.
        descriptors: the number of open descriptors.
        threads: the number of threads.
    """

    steps: int
    memory: float
    descriptors: int
    threads: int


def least(samples: Sequence[Sample]) -> Sample:
    """Return the least of each number of samples."""
    return Sample(*map(min, zip(*map(astuple, samples), strict=True)))


def sample(pid: int, steps: int) -> Sample:
    """Return the numbers of a process that runs."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in status)
    anonymous = int(fields["RssAnon"].split()[0]) * 1024
    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    return Sample(steps, anonymous / MIB, descriptors, int(fields["Threads"]))


def soak(mode: str, steps: int, folder: Path) -> dict[str, list[Sample]]:
    """Run a spec for so many steps; return samples of each node, one for each twentieth."""
    out = folder / mode
    shutil.rmtree(out, ignore_errors=True)
    placer.compile(SPECS / f"{mode}.yaml", out / "build", overrides=FOR_EVER)
    nodes = [node.name for node in read_plan(out / "build").nodes]
    endpoints = ",".join(f"{n}={a}" for n, a in free_endpoints(nodes).items())
    history = out / "history.jsonl"
    command = [sys.executable, "-m", "placer.command", "run", str(out / "build")]
    command += ["--endpoints", endpoints, "--steps", str(steps)]
    command += ["--checkpoint", str(out / "saved"), "--checkpoint-every", "500"]
    command += ["--history", str(history), "--node"]
    with open(out / "log.txt", "w") as log:
        processes = {
            node: subprocess.Popen(
                [*command, node], stdout=log, stderr=subprocess.STDOUT
            )
            for node in nodes
        }
    samples: dict[str, list[Sample]] = {node: [] for node in nodes}
    done = 0
    try:
        for wanted in range(steps // 20, steps, steps // 20):
            while done < wanted:
                if any(process.poll() for process in processes.values()):
                    raise SystemExit(f"{mode}: a node has failed: see {out}/log.txt")
                time.sleep(0.05)
                done = steps_of(history)
            for node, process in processes.items():
                samples[node].append(sample(process.pid, done))
        statuses = [process.wait(60) for process in processes.values()]
        assert not any(statuses), statuses
    finally:
        for process in processes.values():
            process.kill()
    return samples


def steps_of(history: Path) -> int:
    """Return the last step that a history has."""
    if not history.exists():
        return 0
    with open(history, "rb") as file:
        file.seek(max(0, history.stat().st_size - 4096))
        lines = file.read().split(b"\n")[:-1]
    steps = [json.loads(line)["step"] for line in lines if line.startswith(b'{"step"')]
    return max(steps, default=0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("modes", nargs="*", default=MODES)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--grown", type=float, default=2.0, help="MiB")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    grown, found = False, {}
    print(f"{'mode':18}{'node':12}{'MiB':>16}{'descriptors':>16}{'threads':>12}")
    for mode in args.modes:
        found[mode] = soak(mode, args.steps, args.folder)
        for node, samples in found[mode].items():
            quarter = len(samples) // 4
            begin = least(samples[quarter : 2 * quarter])
            end = least(samples[-quarter:])
            print(
                f"{mode:18}{node:12}"
                f"{begin.memory:8.1f} {end.memory:7.1f}"
                f"{begin.descriptors:9} {end.descriptors:6}"
                f"{begin.threads:7} {end.threads:4}",
                flush=True,
            )
            grown |= end.memory - begin.memory > args.grown
            grown |= end.descriptors > begin.descriptors
            grown |= end.threads > begin.threads
    if args.json:
        text = {
            mode: {node: [asdict(each) for each in all] for node, all in nodes.items()}
            for mode, nodes in found.items()
        }
        args.json.write_text(json.dumps(text, indent=1) + "\n")
    return int(grown)


if __name__ == "__main__":
    sys.exit(main())
