"""Measures the all-reduce of optimizers on several workers, over shared memory.

`sum` is an all-reduce of 100 MB between two processes: gradients are in private memory
of each, and the result is in shared memory, where updates read it. It is compared with
the bound 2(n-1)/n * bytes / copy bandwidth. The bandwidth is that of a plain copy: by one
process alone, and by each of the two while both copy, as both work in an all-reduce.

`w3` trains the MLP of bench/specs/all_reduce.yaml (100 MB of parameters, SGD) on two workers,
each held to one core, with 64 rows each, and compares with the same model in plain JAX
in one process, held to one core, with 64 rows: the efficiency is the rows per second of
one worker over those of that process.

Rounds alternate. Prints each round and the medians.

    python bench/all_reduce.py sum
    python bench/all_reduce.py w3 --rounds 5
    python bench/all_reduce.py w3 --set train.optimizer.shard_state=true
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from placer.channel.interface import Channel, Key
from placer.channel.keys import RunKey
from placer.channel.ports import free_endpoints
from placer.channel.session import Session
from placer.place.layouts.ranges import pack
from placer.plan.plan import Edge, EdgeValue
from placer.runtime.exchange.exchange import Exchange
from placer.system.memory import aligned
from placer.system.memory.allocator import keep_memory

ROOT = Path(__file__).parent.parent
SPEC = ROOT / "bench" / "specs" / "all_reduce.yaml"
NODES = ("worker:0", "worker:1")
SIZES = (1024 * 4096, 4096, 4096 * 4096, 4096, 4096 * 1000, 1000)
"""The gradients of W3, in elements."""
NBYTES = 4 * sum(SIZES)
ROWS = 64
REPEATS = 10


# An all-reduce between two processes.


def edge(number: int, layouts: tuple[str, str]) -> Edge:
    values = tuple(
        EdgeValue(f"a{i}", f"b{i}", "float32", (size,), layouts, flat=flat)
        for i, (size, flat) in enumerate(zip(SIZES, pack(SIZES), strict=True))
    )
    return Edge(number, NODES, NODES, values, 0)


class Worker:
    """One of the processes, with its gradients."""

    def __init__(self, channel: Channel) -> None:
        edges = {1: edge(1, ("P", "F")), 2: edge(2, ("F", "R"))}
        self.exchange = Exchange(channel.node, channel, edges, 2)
        self.gradients = [aligned.zeros((size,), np.float32) for size in SIZES]
        self.step = 0

    def all_reduce(self) -> None:
        """Sum the gradients, and visit the sums where they are."""
        self.step += 1
        first, second = Key(1, self.step), Key(2, self.step)
        self.exchange.send(first, self.gradients, 0)
        self.exchange.send(second, self.exchange.receive(first, 0), 0)
        for _ in self.exchange.receive_chunks(second):
            pass

    def wait(self, turn: int) -> None:
        """Wait until the other process is there."""
        channel = self.exchange.channel
        (other,) = (node for node in NODES if node != channel.node)
        channel.send(other, Key(3, turn), [])
        channel.receive(other, Key(3, turn))


def join(node: str, addresses: dict[str, str], job: str) -> Worker:
    keep_memory(4 * NBYTES)
    secret = RunKey(bytes(32))
    channel = Session(node, addresses, job, transport="shared", key=secret)
    channel.join()
    return Worker(channel)


def timed(run: Callable[[], object]) -> float:
    """Return the median of the seconds that calls take."""
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def rounds_of_sums(worker: Worker, rounds: int) -> list[tuple[float, float, float]]:
    """Return the seconds of a copy by this process alone, of one while both copy, and
    of an all-reduce, for each round."""
    source = aligned.zeros((NBYTES,), np.uint8)
    target = aligned.zeros((NBYTES,), np.uint8)

    def copy() -> None:
        np.copyto(target, source)

    measured = []
    for turn in range(rounds):
        alone = timed(copy) if worker.exchange.node == NODES[0] else 0.0
        worker.wait(3 * turn)
        both = timed(copy)
        worker.wait(3 * turn + 1)
        measured.append((alone, both, timed(worker.all_reduce)))
        worker.wait(3 * turn + 2)
    return measured


def measured_sums(rounds: int) -> list[tuple[float, float, float]]:
    """Start the other process, and measure."""
    addresses, job = free_endpoints(NODES), os.urandom(8).hex()
    command = [sys.executable, __file__, "sum", "--rounds", str(rounds), "--peer"]
    child = subprocess.Popen([*command, json.dumps([addresses, job])])
    worker = join(NODES[0], addresses, job)
    measured = rounds_of_sums(worker, rounds)
    worker.exchange.channel.close()
    child.wait()
    return measured


def measure_sum(rounds: int) -> None:
    # 2 (n - 1) / n is 1 for two processes: the bound is the time of a copy.
    print(
        f"{NBYTES / 1e6:.0f} MB between 2 processes; ms of a copy by one, of one by each"
    )
    print("of both, and of an all-reduce; the all-reduce over each of the two")
    ratios = []
    for alone, both, taken in measured_sums(rounds):
        ratios.append((taken / alone, taken / both))
        times = "".join(f"{1e3 * each:9.1f}" for each in (alone, both, taken))
        print(times, "".join(f"{each:9.2f}" for each in ratios[-1]), flush=True)
    medians = [statistics.median(column) for column in zip(*ratios, strict=True)]
    print("medians", "".join(f"{each:9.2f}" for each in medians))


# W3.


def run_plain(steps: int) -> float:
    """Return rows per second of plain JAX on one core."""
    command = [sys.executable, str(ROOT / "bench" / "training.py"), "w3"]
    done = subprocess.run(
        ["taskset", "--cpu-list", "0", *command, "--plain", str(ROWS), str(steps)],
        check=True,
        capture_output=True,
        text=True,
    )
    return float(json.loads(done.stdout)[0])


def run_placed(build: Path, steps: int) -> float:
    """Return rows per second of each worker on its core."""
    addresses = free_endpoints(NODES)
    base = min(int(each.rpartition(":")[2]) for each in addresses.values())
    command = [sys.executable, "-m", "placer.command", "run", str(build)]
    options = ["--steps", str(steps), "--base-port", str(base)]
    nodes = [
        subprocess.Popen(
            ["taskset", "--cpu-list", str(core), *command, "--node", node, *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        for core, node in enumerate(NODES)
    ]
    outputs = [node.communicate()[0] for node in nodes]
    match = re.search(r"([\d,]+) samples/s", outputs[0])
    assert match is not None, outputs
    return float(match[1].replace(",", "")) / len(NODES)


def measure_w3(rounds: int, steps: int, settings: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder) / "build"
        command = [sys.executable, "-m", "placer.command", "compile", str(SPEC)]
        command += ["--out", str(build)]
        for each in settings:
            command += ["--set", each]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        print("ms per step: one process on one core, two workers on one core each;")
        print("efficiency")
        ratios = []
        for _ in range(rounds):
            one, placed = run_plain(steps), run_placed(build, steps)
            ratios.append(placed / one)
            times = (1e3 * ROWS / one, 1e3 * ROWS / placed)
            print("".join(f"{each:9.1f}" for each in times), f"{ratios[-1]:9.2f}")
        low, high = min(ratios), max(ratios)
        middle = statistics.median(ratios)
        print(f"median efficiency {middle:.2f} ({low:.2f} to {high:.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("sum", "w3"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--json", action="store_true", help="of `sum`: print the seconds of each round"
    )
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        worker = join(NODES[1], *json.loads(arguments.peer))
        rounds_of_sums(worker, arguments.rounds)
        worker.exchange.channel.close()
    elif arguments.json:
        print(json.dumps(measured_sums(arguments.rounds)))
    elif arguments.what == "sum":
        measure_sum(arguments.rounds)
    else:
        measure_w3(arguments.rounds, arguments.steps, arguments.set)


if __name__ == "__main__":
    main()
