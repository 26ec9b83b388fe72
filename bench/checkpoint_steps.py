"""Measures what checkpoints cost the steps of W3, and how fast they are written and read.

W3 is bench/specs/dense.yaml on one worker and one server; `--workload w2` takes
bench/specs/w2.yaml with its sparse table instead (see wide.py). Runs without checkpoints and
runs with one every 10 s take turns, each with the same number of steps, for at least
60 s. After each pair, a checkpoint of 1 GiB is written and read as in
bench/checkpoint_bandwidth.py, in the same folder. Four figures are printed:

- *waits*: the share of a run's time in which the node that waited longest waited for
  checkpoints (`Result.checkpoint_seconds`): from the request until the common step is
  known, then for the metrics up to it, for the checkpoint before, and for the copy.
- *steps*: the share by which the steps around the checkpoints took longer. The control
  node's times of the steps T-2 to T+2, where T is the step of the checkpoint, are added,
  less the median of the steps that are in no such window. This has what `waits` leaves
  out: one node waits for another that copies, and the first parts of the file are
  written. A difference in the noise is not cut off at 0.
- *time*: the time of all steps of the run with checkpoints, relative to the run without.
- *CPU*: the CPU seconds of all processes after the first step, the launcher and the
  writing of the last checkpoint included, relative to the run without.

    python bench/checkpoint_steps.py FOLDER           # 5 pairs of 60 s, some 15 minutes
    python bench/checkpoint_steps.py FOLDER --seconds 5 --every 1s --pairs 1 --gib 0.1
    python bench/checkpoint_steps.py FOLDER --every auto             # as with `--restarts`
    python bench/checkpoint_steps.py FOLDER --workload w2 --gib 0    # without the GiB
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from checkpoint_bandwidth import measure, show
from mode_builds import BUILDS, copy_specs
from wide_rows import write_rows

import placer
from placer.runtime.control.events import CheckpointSaved, Event, Step

WORKLOADS = {"w3": "wire", "w2": "w2_1_sync"}
"""The build of each workload, on one worker and one server."""
CALIBRATION = 100
"""The steps of a run from which follows how many steps the others have."""
AROUND = 2
"""The steps before and after that of a checkpoint whose times belong to it."""
ROUNDS = 3
"""The rounds of `checkpoint_bandwidth` after each pair of runs."""


def used_so_far() -> float:
    """Return the CPU seconds of this process and of its children that run."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == os.getpid():
            ticks += int(fields[11]) + int(fields[12])
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


def used_in_all() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def run(build: Path, steps: int, every: str, kept: Path) -> dict[str, Any]:
    """Run a build in this process and its children.

    Returns:
        The times of the steps after the first, the steps of the checkpoints, how long
        steps waited for them, and the CPU seconds, all after the first step.
    """
    ends: list[float] = []
    saved: list[int] = []
    used = 0.0

    def watch(event: Event) -> None:
        nonlocal used
        if isinstance(event, Step):
            if not ends:
                used = used_so_far()
            ends.append(event.seconds)
        elif isinstance(event, CheckpointSaved):
            saved.append(event.step)

    options = {"checkpoint": kept, "checkpoint_every": every} if every else {}
    result = placer.launch(
        build, steps=steps, watch=watch, return_params=False, **options
    )
    return {
        "ends": ends,
        "saved": saved,
        "waits": result.checkpoint_seconds,
        "cpu": used_in_all() - used,
    }


def run_alone(build: Path, steps: int, every: str, kept: Path) -> dict[str, Any]:
    """Run a build from a process of its own, whose children are the nodes."""
    command = [sys.executable, __file__, str(kept), "--run", str(build), str(steps)]
    done = subprocess.run(
        [*command, every], check=True, stdout=subprocess.PIPE, text=True
    )
    shutil.rmtree(kept, ignore_errors=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def excess(ends: list[float], saved: list[int]) -> float:
    """Return by how many seconds the steps around checkpoints took longer than others.

    `ends[i]` is when step i + 1 ended. The checkpoint after the last step is not
    counted: no step follows it.
    """
    durations = {i + 1: ends[i] - ends[i - 1] for i in range(1, len(ends))}
    around = {
        step
        for at in saved
        for step in range(at - AROUND, at + AROUND + 1)
        if at < len(ends) and step in durations
    }
    usual = median(each for step, each in durations.items() if step not in around)
    return sum(durations[step] - usual for step in around)


def show_pairs(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Print the figures of each pair of runs, with and without checkpoints, and the
    medians."""
    print("checkpoints  seconds   waits   steps    time     CPU")
    figures = []
    for kept, plain in pairs:
        ends, alone = kept["ends"], plain["ends"]
        seconds = ends[-1] - ends[0]
        figures.append(
            (
                100 * kept["waits"] / seconds,
                100 * excess(ends, kept["saved"]) / seconds,
                seconds / (alone[-1] - alone[0]),
                kept["cpu"] / plain["cpu"],
            )
        )
        waits, steps, time, cpu = figures[-1]
        print(
            f"{len(kept['saved']):11}  {seconds:7.1f}  {waits:5.2f}%  {steps:5.2f}%"
            f"  {time:5.3f}x  {cpu:5.3f}x"
        )
    waits, steps, time, cpu = (median(each) for each in zip(*figures, strict=True))
    print(f"{'median':22}{waits:5.2f}%  {steps:5.2f}%  {time:5.3f}x  {cpu:5.3f}x")


def compile_workload(name: str, folder: Path) -> Path:
    """Compile the build of a workload into a folder of its own."""
    specs, build = folder / "specs", folder / "build"
    copy_specs(specs)
    if name == "w2":
        write_rows(specs / "w2.npz", 10**6)
    BUILDS[WORKLOADS[name]].compile(specs, build)
    return build


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workload", choices=WORKLOADS, default="w3")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--every", default="10s")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        build, steps, every = args.run
        print(json.dumps(run(Path(build), int(steps), every, args.folder)))
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    pairs, rounds = [], []
    with tempfile.TemporaryDirectory() as name:
        build, kept = compile_workload(args.workload, Path(name)), args.folder / "kept"
        ends = run_alone(build, CALIBRATION, "", kept)["ends"]
        step = (ends[-1] - ends[0]) / (len(ends) - 1)
        steps = math.ceil(1.2 * args.seconds / step)
        print(
            f"{os.cpu_count()} cores; {steps} steps of {1000 * step:.0f} ms, and a"
            f" checkpoint every {args.every}"
        )
        for number in range(args.pairs):
            order = ("", args.every) if number % 2 else (args.every, "")
            found = {every: run_alone(build, steps, every, kept) for every in order}
            pairs.append((found[args.every], found[""]))
            if args.gib:
                rounds += measure(args.folder, args.gib, ROUNDS)
            print(f"pair {number + 1} of {args.pairs}", file=sys.stderr, flush=True)
    show_pairs(pairs)
    if rounds:
        show(args.gib, rounds)


if __name__ == "__main__":
    main()
