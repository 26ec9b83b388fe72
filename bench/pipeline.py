"""Measures a pipeline of two stages on two workers against torch's pipelining.

Both train the same model with microbatches of 256 x 1024, eight per step, with the
schedule 1F1B; each stage is a process with one core and one thread. Rounds alternate.
Prints the microbatches per second of each round, and the medians.

Then it measures the memory of the activations of a step, and compares it with
`activation_bytes` of the plan: the peak memory after the first step, minus the peak of
the same run with one row per microbatch.

    python bench/pipeline.py --setup FOLDER     # installs torch and TensorFlow, once
    python bench/pipeline.py FOLDER
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from peers.environment import command, set_up

ROOT = Path(__file__).parent.parent
SPEC = ROOT / "bench" / "specs" / "pipeline.yaml"
MICROBATCHES, ROWS = 8, 256
LARGE = 2048
"""The rows of a microbatch when the memory of activations is measured."""
CORES = (0, 1)
STAGES = ("worker:0", "worker:1")

DEEP = """\
name: deep
nodes: {worker: {count: 2}}
inputs: {x: "float32[batch, 1024]", y: "float32[batch, 1024]"}
data: {train: {source: "python:random_rows:large", batch: BATCH}}
graph:
LAYERS
  - {name: loss, op: mean_squared_error, in: [h7, y]}
train:
  minimize: loss
  microbatches: 8
  schedule: SCHEDULE
  optimizer: {op: sgd, learning_rate: 0.01}
"""


def run_torch(folder: Path, steps: int) -> float:
    script = command(folder, "torch_pipeline.py")
    with tempfile.TemporaryDirectory() as store:
        done = subprocess.run(
            [*script, str(steps), ",".join(map(str, CORES))],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "STORE": store, "OMP_NUM_THREADS": "1"},
        )
    return float(done.stdout)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def start(command: list[str], options: list[str]) -> list[subprocess.Popen[str]]:
    """Start each stage as a process on its own core."""
    return [
        subprocess.Popen(
            ["taskset", "--cpu-list", str(core), *command, node, *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        for node, core in zip(STAGES, CORES, strict=True)
    ]


def run_placed(build: Path, steps: int) -> float:
    """Return microbatches per second, as the first node prints them."""
    command = [sys.executable, "-m", "placer.command", "run", str(build)]
    options = ["--steps", str(steps), "--base-port", str(free_port())]
    nodes = start([*command, "--node"], options)
    outputs = [node.communicate()[0] for node in nodes]
    assert not any(node.returncode for node in nodes), outputs
    match = re.search(r"([\d,]+) samples/s", outputs[0])
    assert match is not None, outputs[0]
    return float(match[1].replace(",", "")) / ROWS


def compile_spec(spec: Path, build: Path) -> dict[str, int]:
    """Compile a spec; return `activation_bytes` of the plan by node."""
    command = [sys.executable, "-m", "placer.command", "compile", str(spec)]
    subprocess.run(
        [*command, "--out", str(build)], check=True, stdout=subprocess.DEVNULL
    )
    plan = json.loads((build / "plan.json").read_text())
    return {node["name"]: node["activation_bytes"] for node in plan["nodes"]}


def peaks(build: Path, folder: Path) -> dict[str, int]:
    """Run a build; return the peak bytes in use by node, after the first step."""
    history = folder / "history"
    history.unlink(missing_ok=True)
    os.mkfifo(history)
    script = [sys.executable, str(ROOT / "bench" / "memory_node.py"), str(build)]
    nodes = start(script, [str(free_port()), "6", str(history)])
    with history.open() as lines:
        lines.readline()
        for node in nodes:
            node.send_signal(signal.SIGUSR1)
        lines.read()
    outputs = [node.communicate()[0] for node in nodes]
    return {name: int(each) for name, each in zip(STAGES, outputs, strict=True)}


def memory(folder: Path) -> None:
    """Print the planned and the measured memory of activations for each schedule."""
    rows = "random_rows.py"
    (folder / rows).write_bytes((SPEC.parent / rows).read_bytes())
    layers = "\n".join(
        f"  - {{name: h{i}, op: fc, in: {f'h{i - 1}' if i else 'x'}, size: 1024, "
        f"activation: relu, place: '/node:worker:{i // 4}/cpu'}}"
        for i in range(8)
    )
    print("  MiB of activations: planned, measured")
    for schedule in ("1f1b", "gpipe"):
        planned, measured = [], []
        for batch in (MICROBATCHES, MICROBATCHES * LARGE):
            spec = folder / "deep.yaml"
            text = DEEP.replace("LAYERS", layers).replace("BATCH", str(batch))
            spec.write_text(text.replace("SCHEDULE", schedule))
            build = folder / f"deep_{schedule}_{batch}"
            planned.append(compile_spec(spec, build))
            measured.append(peaks(build, folder))
        for node in STAGES:
            plan, real = (
                sizes[1][node] - sizes[0][node] for sizes in (planned, measured)
            )
            print(
                f"  {schedule:6} {node}  {plan / 2**20:7.1f}  {real / 2**20:7.1f}"
                f"  {real / plan:5.2f}x",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--setup", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    if arguments.setup:
        set_up(arguments.folder)
        return
    with tempfile.TemporaryDirectory() as name:
        build = Path(name) / "build"
        compile_spec(SPEC, build)
        print("microbatches per second: torch, placer, ratio")
        theirs, ours = [], []
        for _ in range(arguments.rounds):
            theirs.append(run_torch(arguments.folder, arguments.steps))
            ours.append(run_placed(build, arguments.steps))
            print(
                f"  {theirs[-1]:7.1f}  {ours[-1]:7.1f}  {ours[-1] / theirs[-1]:5.2f}x",
                flush=True,
            )
        ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
        print(
            f"median {statistics.median(theirs):.1f} and {statistics.median(ours):.1f}: "
            f"{statistics.median(ratios):.2f}x as many as torch"
        )
        memory(Path(name))


if __name__ == "__main__":
    main()
