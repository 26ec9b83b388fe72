"""One run of each peer, with each worker on a core of its own.

With one server it may use both cores; otherwise each server shares the core of a worker.
Rates are samples per second of all workers together, without the first steps.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cpu_times import CpuTimes, Used
from on_cores import Process, run_together
from peers.environment import command

from placer.channel.ports import free_endpoints

ROWS = {"w1": 512, "w2": 1024, "w3": 64}
"""The rows of a worker in a step."""
BOTH = "0,1"


def cores_of(workers: int, servers: int) -> tuple[str, ...]:
    """Return the cores of each worker, then those of each server."""
    alone = tuple(map(str, range(workers)))
    return (*alone, *((BOTH,) if servers == 1 else alone[:servers]))


@dataclass(frozen=True)
class Measurement:
    """A run of a system.

    Attributes:
        rate: the samples per second of all workers together.
        worker: the CPU milliseconds of a worker for each of its steps.
        servers: those of all servers together for a step of one worker.
        others: how many cores other programs used meanwhile.
    """

    rate: float
    worker: float
    servers: float
    others: float

    @classmethod
    def of(cls, rate: float, used: Used, workers: int, steps: int) -> Measurement:
        """Return that of a run with `steps` steps; its workers are the first processes."""
        scale = 1e3 / (workers * steps)
        worker, servers = sum(used.seconds[:workers]), sum(used.seconds[workers:])
        return cls(rate, scale * worker, scale * servers, used.others)


def span(printed: Sequence[str]) -> tuple[float, float]:
    """Return when the steps began and ended; each worker printed that of its own."""
    times = [tuple(map(float, text.split())) for text in printed if text]
    return min(begin for begin, _ in times), max(end for _, end in times)


def rate(printed: Sequence[str], samples: int) -> float:
    """Return samples per second; each worker printed when its steps began and ended."""
    begin, end = span(printed)
    return samples / (end - begin)


def torch_rpc(
    env: Path,
    workload: str,
    mode: str,
    workers: int,
    servers: int,
    steps: int,
    warm: int,
) -> float:
    with tempfile.TemporaryDirectory() as folder:
        script = [*command(env, "torch_rpc.py"), workload, mode]
        script += ["--workers", str(workers), "--servers", str(servers)]
        script += ["--steps", str(steps), "--warm", str(warm)]
        script += ["--store", f"{folder}/store", "--rank"]
        printed = run_together(
            [
                Process([*script, str(rank)], cores)
                for rank, cores in enumerate(cores_of(workers, servers))
            ]
        )
    return rate(printed, workers * steps * ROWS[workload])


def torch_sparse(
    env: Path, rows: Path, keys: int, steps: int, warm: int
) -> Measurement:
    """W2 in one process, with a table of so many keys."""
    script = [*command(env, "torch_sparse.py"), str(rows), str(keys)]
    script += ["--steps", str(steps), "--warm", str(warm)]
    return measure_sparse([Process(script, "0")], 1, steps)


def torch_sparse_rpc(
    env: Path,
    rows: Path,
    keys: int,
    mode: str,
    workers: int,
    servers: int,
    steps: int,
    warm: int,
) -> Measurement:
    with tempfile.TemporaryDirectory() as folder:
        script = [*command(env, "torch_sparse_rpc.py"), str(rows), str(keys), mode]
        script += ["--workers", str(workers), "--servers", str(servers)]
        script += ["--steps", str(steps), "--warm", str(warm)]
        script += ["--store", f"{folder}/store", "--rank"]
        processes = [
            Process([*script, str(rank)], cores)
            for rank, cores in enumerate(cores_of(workers, servers))
        ]
        return measure_sparse(processes, workers, steps)


def measure_sparse(
    processes: Sequence[Process], workers: int, steps: int
) -> Measurement:
    """Run processes of W2, of which the first are workers that print when they began
    and ended."""
    times = CpuTimes()
    printed = run_together(processes, times=times)
    used = times.between(*span(printed))
    samples = workers * steps * ROWS["w2"]
    return Measurement.of(rate(printed, samples), used, workers, steps)


def torch_ddp(env: Path, workers: int, steps: int, warm: int) -> float:
    """W3 over gloo; with one worker without it."""
    with tempfile.TemporaryDirectory() as folder:
        script = [*command(env, "torch_ddp.py"), "--workers", str(workers)]
        script += ["--steps", str(steps), "--warm", str(warm)]
        script += ["--store", f"{folder}/store", "--rank"]
        ranks = range(workers)
        printed = run_together(
            [Process([*script, str(rank)], str(rank)) for rank in ranks]
        )
    return rate(printed, workers * steps * ROWS["w3"])


def torch_all_reduce(env: Path, nbytes: int, repeats: int) -> float:
    """Return the seconds of an all-reduce of `nbytes` between two processes."""
    with tempfile.TemporaryDirectory() as folder:
        script = [*command(env, "torch_all_reduce.py"), str(nbytes)]
        script += ["--workers", "2", "--repeats", str(repeats)]
        script += ["--store", f"{folder}/store", "--rank"]
        printed = run_together(
            [Process([*script, str(rank)], BOTH) for rank in range(2)]
        )
    return max(map(float, printed))


def tensorflow_async(env: Path, steps: int, warm: int) -> float:
    """W1 with one server, two workers, and a coordinator, which only gives out steps."""
    tasks = ("worker:0", "worker:1", "ps:0", "chief:0")
    cores = ("0", "1", BOTH, BOTH)
    endpoints = free_endpoints(tasks)
    kinds: dict[str, list[str]] = {}
    for task, address in endpoints.items():
        kinds.setdefault(task.partition(":")[0], []).append(address)
    script = [*command(env, "tensorflow_server.py"), "--workers", "2"]
    script += ["--steps", str(steps), "--warm", str(warm)]
    script += ["--endpoints", json.dumps(kinds), "--task"]
    printed = run_together(
        [
            Process([*script, task], core, serves=task != "chief:0")
            for task, core in zip(tasks, cores, strict=True)
        ]
    )
    return rate(printed, 2 * steps * ROWS["w1"])
