"""One run of each peer, with each worker on a core of its own.

With one server it may use both cores; otherwise each server shares the core of a worker.
Rates are samples per second of all workers together, without the first steps.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from on_cores import Process, run_together
from peers.environment import command

from placer.channel.ports import free_endpoints

ROWS = {"w1": 512, "w3": 64}
"""The rows of a worker in a step."""
BOTH = "0,1"


def cores_of(workers: int, servers: int) -> tuple[str, ...]:
    """Return the cores of each worker, then those of each server."""
    alone = tuple(map(str, range(workers)))
    return (*alone, *(alone if servers == workers else (BOTH,) * servers))


def rate(printed: Sequence[str], samples: int) -> float:
    """Return samples per second; each worker printed when its steps began and ended."""
    times = [tuple(map(float, text.split())) for text in printed if text]
    return samples / (max(end for _, end in times) - min(begin for begin, _ in times))


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
