"""Measures the time from a spec to a build folder, in a cold process.

Prints one line per size: ops of the spec and of the placed graph, seconds of the whole
process, ops of the spec per second, CPU seconds, peak memory. The spec is a chain of
small layers (a quarter of its ops are fc, each with two parameters) on 2 workers, or
`--workers`, and 2 servers, or divided into equal parts over `--devices` GPUs, eight on
each node. What each pass changed is verified. Each size is compiled several times, and
the fastest is printed, because the machine is shared.

    python bench/compile_time.py            # 1,000 and 20,000 ops
    python bench/compile_time.py 1000 5000 20000 --runs 5
    python bench/compile_time.py 26600 --devices 64     # 100,000 ops of the graph
    python bench/compile_time.py 2000 6000 --workers 1000
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HEAD = """\
name: chain
nodes: NODES
inputs:
  x: float32[batch, 64]
  y: float32[batch, 64]
data:
  train: {source: "npz:rows.npz", batch: BATCH}
graph:
"""
TAIL = """\
  - {name: loss, op: mean_squared_error, in: [LAST, y]}
train:
  minimize: loss
  epochs: 1
  metrics: [loss]
  clip: {global_norm: 1.0}
  optimizer: {op: adam, learning_rate: 1.0e-3}
"""


def spec(ops: int, devices: int = 0, workers: int = 2) -> str:
    """Return a spec with a chain of `ops` ops: fc, tanh, scale, add the input of fc."""
    nodes = f"{{worker: {{count: {workers}}}, ps: {{count: 2}}}}"
    if devices:
        nodes = f"{{worker: {{count: {devices // 8}, devices: {{cpu: 1, gpu: 8}}}}}}"
    layers = (ops - 1) // 4
    lines, last = [], "x"
    for i in range(layers):
        node, gpu = divmod(i * devices // layers, 8)
        place = f"/node:worker:{node}/gpu:{gpu}" if devices else "/node:worker/cpu"
        lines += [
            f"  - place: {place}\n    ops:\n",
            f"      - {{name: fc{i}, op: fc, in: {last}, size: 64}}\n",
            f"      - {{name: act{i}, op: tanh, in: fc{i}}}\n",
            f"      - {{name: half{i}, op: scale, in: act{i}, factor: 0.5}}\n",
            f"      - {{name: out{i}, op: add, in: [half{i}, {last}]}}\n",
        ]
        last = f"out{i}"
    head = HEAD.replace("NODES", nodes).replace("BATCH", str(max(128, 8 * workers)))
    tail = TAIL.replace("LAST", last)
    return f"{head}{''.join(lines)}{tail}"


def compile_once(file: Path, out: Path) -> tuple[float, float, float]:
    """Return seconds, CPU seconds and peak MiB of `placer compile` of a spec."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    command = ["-m", "placer.command", "compile", str(file), "--out", str(out)]
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu, after.ru_maxrss / 1024


def graph_ops(build: Path) -> int:
    """Return the number of ops in the graph of a training step."""
    step = (build / "graph.txt").read_text(encoding="utf-8").split("\n}\n")[0]
    return step.count("\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ops", nargs="*", type=int, default=[1000, 20000])
    parser.add_argument("--devices", type=int, default=0, metavar="N")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        for ops in arguments.ops:
            file, out = Path(folder) / f"chain{ops}.yaml", Path(folder) / f"build{ops}"
            text = spec(ops, arguments.devices, arguments.workers)
            file.write_text(text, encoding="utf-8")
            runs = [compile_once(file, out) for _ in range(arguments.runs)]
            placed = graph_ops(out)
            seconds, cpu, memory = min(runs)
            figures.append(
                {
                    "ops": ops,
                    "graph_ops": placed,
                    "seconds": seconds,
                    "cpu_seconds": cpu,
                    "ops_per_second": ops / seconds,
                    "peak_mib": memory,
                }
            )
            if not arguments.json:
                print(
                    f"{ops:>7} ops  {placed:>7} placed  {seconds:6.2f} s  {ops / seconds:7.0f} ops/s"
                    f"  {cpu:6.2f} CPU s  {memory:6.0f} MiB"
                )
    if arguments.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
