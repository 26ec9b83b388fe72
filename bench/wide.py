"""Measures a wide and sparse model with its table on servers, beside torch RPC.

W2: rows have 26 ids and 13 numbers (see wide_rows.py); an MLP 429-400-400-400-1 with Adam;
a sparse table of dimension 16 with Adagrad; 1024 rows for each worker. Systems take turns, a
run each in a round, on the same rows, processes and cores: each worker is held to one core;
of two servers each shares the core of a worker, one may use both cores. The first steps are
not counted. CPU times are those of a step of one worker, and of all servers together for
it; other programs of the machine hardly change them, so they are printed with the cores that
these used meanwhile.

    python bench/wide.py --setup FOLDER          # installs torch and TensorFlow, once
    python bench/wide.py FOLDER                  # all cases
    python bench/wide.py FOLDER w2_2_async --rounds 5 --json wide.json
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from cases import Case, Measured, Ratio, main
from mode_builds import BUILDS
from on_cores import Process
from peers import runs
from peers.runs import Measurement
from placed import Bench
from wide_rows import write_rows

STEPS, WARM = 110, 15
"""So many steps that each row is read once."""
KEYS = {"w2.npz": 10**6, "w2_10m.npz": 10**7}
PADDLE, ONE_JAX = 20_000, 17_300
"""Samples per second on another machine: of PaddlePaddle 2.6 with 2 workers and 2 servers,
asynchronous, the best peer there; and of one JAX process."""


def rows_of(bench: Bench, name: str = "w2.npz") -> Path:
    """Return the file of rows, which is written the first time."""
    path = bench.folder / name
    if not path.exists():
        write_rows(path, KEYS[name])
    return path


def steps_of(bench: Bench) -> int:
    return bench.steps or STEPS


def placer(bench: Bench, build: str) -> Measurement:
    rows_of(bench, str(BUILDS[build].settings["data.train.source"])[len("npz:") :])
    return bench.measure(build, steps_of(bench), WARM)


def torch_rpc(bench: Bench, how: str, nodes: int) -> Measurement:
    rows, keys = rows_of(bench), KEYS["w2.npz"]
    return runs.torch_sparse_rpc(
        bench.env, rows, keys, how, nodes, nodes, steps_of(bench), WARM
    )


def one_torch(bench: Bench) -> Measurement:
    return runs.torch_sparse(
        bench.env, rows_of(bench), KEYS["w2.npz"], steps_of(bench), WARM
    )


def one_jax(bench: Bench) -> Measurement:
    script = Path(__file__).parent / "wide_plain.py"
    command = [sys.executable, str(script), str(rows_of(bench)), str(KEYS["w2.npz"])]
    command += [str(steps_of(bench)), str(WARM)]
    return runs.measure_sparse([Process(command, "0")], 1, steps_of(bench))


def measured(**systems: Measurement) -> Measured:
    """Return the numbers of systems by name."""
    found = {}
    for name, each in systems.items():
        name = name.replace("_", " ")
        found[f"{name}, samples/s"] = each.rate
        found[f"{name}, worker ms"] = each.worker
        if each.servers:
            found[f"{name}, servers ms"] = each.servers
        found[f"{name}, cores of others"] = each.others
    return found


def systems(bench: Bench, how: str, nodes: int) -> Measured:
    return measured(
        placer=placer(bench, f"w2_{nodes}_{how}"),
        torch_RPC=torch_rpc(bench, how, nodes),
        one_JAX=one_jax(bench),
        one_torch=one_torch(bench),
    )


def more_keys(bench: Bench, how: str) -> Measured:
    return measured(
        placer_1_M=placer(bench, f"w2_2_{how}"),
        placer_10_M=placer(bench, f"w2_2_{how}_10m"),
    )


def quotient(above: str, below: str) -> Callable[[Measured], float]:
    return lambda values: values[above] / values[below]


def cpu(values: Measured, system: str) -> float:
    """Return the CPU milliseconds of all nodes for a step of a worker."""
    return values[f"{system}, worker ms"] + values[f"{system}, servers ms"]


def ratios(torch: float | None, paddle: float | None = None) -> tuple[Ratio, ...]:
    return (
        Ratio(
            "samples/s of torch RPC",
            quotient("placer, samples/s", "torch RPC, samples/s"),
            at_least=torch,
        ),
        Ratio("CPU of torch RPC", lambda v: cpu(v, "placer") / cpu(v, "torch RPC")),
        Ratio(
            "samples/s of one JAX process",
            quotient("placer, samples/s", "one JAX, samples/s"),
            at_least=paddle,
        ),
        Ratio(
            "CPU of servers",
            lambda values: values["placer, servers ms"],
            at_most=10,
            unit=" ms",
        ),
    )


CASES = {
    f"w2_{nodes}_{how}": Case(
        f"W2, {nodes} servers and workers, {how}",
        "",
        partial(systems, how=how, nodes=nodes),
        ratios(1.5, round(1.3 * PADDLE / ONE_JAX, 2))
        if (nodes, how) == (2, "async")
        else ratios(None),
    )
    for nodes in (1, 2)
    for how in ("sync", "async")
} | {
    f"w2_keys_{how}": Case(
        f"W2, 2 servers and workers, {how}, 10 M possible keys and 1 M",
        "",
        partial(more_keys, how=how),
        (
            Ratio(
                "time of a step",
                quotient("placer 1 M, samples/s", "placer 10 M, samples/s"),
                at_most=1.15,
            ),
            Ratio(
                "CPU of a step", lambda v: cpu(v, "placer 10 M") / cpu(v, "placer 1 M")
            ),
        ),
    )
    for how in ("sync", "async")
}

if __name__ == "__main__":
    main(__doc__.splitlines()[0], CASES)
