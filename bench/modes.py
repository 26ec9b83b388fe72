"""Measures the ways in which workers agree on updates, beside torch and TensorFlow.

`w1` is the network of specs/seed_ctr.yaml with Adam and 512 rows for each worker, `w3` an
MLP 1024-4096-4096-1000 with SGD and 64 rows for each (100 MB of parameters). Systems take
turns, a run each in a round, with the same model, dtype, batch, number of processes and
cores: each worker is held to one core; one server may use both cores, and of two servers
each shares the core of a worker. The first steps are not counted. A ratio is computed in
each round; its median is compared with the target.

    python bench/modes.py --setup FOLDER           # installs torch and TensorFlow, once
    python bench/modes.py FOLDER                   # all cases
    python bench/modes.py FOLDER w1_sync w1_async --rounds 5
    python bench/modes.py FOLDER --json modes.json

The case `wire` needs root, and the commands `ip` and `tc`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cases import Case, Measured, Ratio, main
from mode_builds import BUILDS
from on_cores import Process, run_together
from peers import runs
from placed import Bench

ROOT = Path(__file__).parent.parent
W3_BYTES = 4 * (1024 * 4096 + 4096 * 4096 + 4096 * 1000 + 4096 + 4096 + 1000)
GIGABIT = 1e9 / 8


def alone(workload: str, steps: int, workers: int = 1) -> float:
    """Return samples per second of processes of plain JAX that do not know each other,
    each on a core of its own, all together."""
    rows = str(runs.ROWS[workload])
    command = [sys.executable, str(ROOT / "bench" / "training.py"), workload]
    command += ["--plain", rows, str(steps)]
    printed = run_together([Process(command, str(core)) for core in range(workers)])
    return sum(json.loads(text)[0] for text in printed)


# The cases. Each measures one round.


def w1_sync(bench: Bench) -> Measured:
    return {
        "placer": bench.placer("w1_sync", 150, 10),
        "torch RPC": runs.torch_rpc(bench.env, "w1", "sync", 2, 1, 150, 10),
    }


def w1_async(bench: Bench) -> Measured:
    return {
        "placer": bench.placer("w1_async", 150, 10),
        "torch RPC": runs.torch_rpc(bench.env, "w1", "async", 2, 1, 150, 10),
        "TensorFlow": runs.tensorflow_async(bench.env, 150, 10),
    }


def w1_geo(bench: Bench) -> Measured:
    return {
        "placer": bench.placer("w1_geo", 300, 10),
        "two JAX processes": alone("w1", 150, workers=2),
    }


def w3_servers(bench: Bench) -> Measured:
    return {
        "placer": bench.placer("w3_servers", 20, 3),
        "torch RPC": runs.torch_rpc(bench.env, "w3", "sync", 2, 2, 12, 2),
    }


def w3_all_reduce(bench: Bench) -> Measured:
    return {
        "placer": bench.placer("w3_all_reduce", 20, 3),
        "one JAX process": alone("w3", 15),
        "torch DDP": runs.torch_ddp(bench.env, 2, 20, 3),
        "one torch process": runs.torch_ddp(bench.env, 1, 20, 3),
    }


def all_reduce(bench: Bench) -> Measured:
    command = [sys.executable, str(ROOT / "bench" / "all_reduce.py"), "sum", "--json"]
    (printed,) = run_together([Process([*command, "--rounds", "1"], runs.BOTH)])
    copy, _, taken = json.loads(printed)[0]
    return {
        "placer": 1e3 * taken,
        "torch gloo": 1e3 * runs.torch_all_reduce(bench.env, W3_BYTES, 10),
        "a copy": 1e3 * copy,
    }


def wire(bench: Bench) -> Measured:
    from machines import hosts, train  # which needs the tests of this checkout

    with hosts(("host-a", "host-b")) as two:
        for host in two:
            host.limit_rate("1gbit")
        places = dict(zip(BUILDS["wire"].nodes(), two, strict=True))
        build = bench.build("wire")
        seconds = train(build, places, bench.folder, 8, "--insecure-network")
    return {
        "placer": 1e3 * seconds,
        "wire": 1e3 * W3_BYTES / GIGABIT,
        "one JAX process": 1e3 * runs.ROWS["w3"] / alone("w3", 15),
    }


def over_best(values: Measured) -> float:
    """Return the rate of placer over that of the best peer."""
    return values["placer"] / max(v for name, v in values.items() if name != "placer")


CASES = {
    "w1_sync": Case(
        "W1, 1 server and 2 workers, synchronous",
        "samples/s",
        w1_sync,
        (Ratio("of the best peer", over_best, at_least=1.3),),
    ),
    "w1_async": Case(
        "W1, 1 server and 2 workers, asynchronous",
        "samples/s",
        w1_async,
        (Ratio("of the best peer", over_best, at_least=1.3),),
    ),
    "w1_geo": Case(
        "W1, 1 server and 2 workers on a core each, GEO with k = 100",
        "samples/s",
        w1_geo,
        (Ratio("of two processes side by side", over_best, at_least=0.95),),
    ),
    "w3_servers": Case(
        "W3, 2 servers and 2 workers, synchronous",
        "samples/s",
        w3_servers,
        (Ratio("of torch RPC", over_best, at_least=3),),
    ),
    "w3_all_reduce": Case(
        "W3, all-reduce of 2 workers on a core each",
        "samples/s",
        w3_all_reduce,
        (
            Ratio(
                "efficiency of placer",
                lambda v: v["placer"] / v["one JAX process"] / 2,
                at_least=0.85,
            ),
            Ratio(
                "efficiency of DDP",
                lambda v: v["torch DDP"] / v["one torch process"] / 2,
            ),
        ),
    ),
    "all_reduce": Case(
        "all-reduce of 100 MB between 2 processes",
        "ms",
        all_reduce,
        (
            Ratio("of gloo", lambda v: v["placer"] / v["torch gloo"], at_most=0.4),
            # 2 (n - 1) / n is 1 for two processes: the bound is the time of a copy.
            Ratio("of the bound", lambda v: v["placer"] / v["a copy"], at_most=1.5),
        ),
    ),
    "wire": Case(
        "W3, 1 server and 1 worker, TCP, 1 Gbit/s each way",
        "ms",
        wire,
        (
            Ratio(
                "of max(wire, compute)",
                lambda v: v["placer"] / max(v["wire"], v["one JAX process"]),
                at_most=1.2,
            ),
            Ratio(
                "of both ways in turn + compute",
                lambda v: v["placer"] / (2 * v["wire"] + v["one JAX process"]),
            ),
        ),
    ),
}


if __name__ == "__main__":
    main(__doc__.splitlines()[0], CASES)
