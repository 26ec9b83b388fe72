"""Measures synchronous training with a parameter server against one `jax.jit` process.

`w1` is the network of specs/seed_ctr.yaml (Adam, batch 512), `w3` an MLP
1024-4096-4096-1000 (SGD, batch 64, 100 MB of parameters), `deep` one of 24 layers of 1024
(batch 512, 100 MB), and `mesh` an MLP
256-512-512-10 on 4096 rows over two emulated devices of one node; run it with `--nodes
worker=1`. The reference is the same model in plain JAX and optax: the whole step is one
`jax.jit` with donated state, on the same rows in the same order, with the same
allocator settings. Rounds alternate, so that both see the same load of the machine.
Prints the times and the ratio of each round, and the medians.

    python bench/training.py w1
    python bench/training.py w3 --transport shared tcp tls
    python bench/training.py w1 --nodes worker=2,ps=1 --rounds 7 --steps 300
    python bench/training.py mesh --nodes worker=1
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Workload:
    """A spec, and the data for the same model in plain JAX."""

    spec: Path
    source: str
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    sizes: tuple[int, ...]
    embedding: tuple[int, int] | None
    batch: int
    shuffle: bool
    optimizer: tuple[str, float]
    steps: int


WORKLOADS = {
    "w1": Workload(
        ROOT / "specs" / "seed_ctr.yaml",
        "python:seed_ctr_rows:train",
        (("ids", "int32", ()), ("label", "int32", ())),
        (128, 1024, 512, 256, 2),
        (1000, 128),
        512,
        True,
        ("adam", 1e-4),
        200,
    ),
    "w3": Workload(
        ROOT / "bench" / "specs" / "dense.yaml",
        "python:random_rows:dense",
        (("x", "float32", (1024,)), ("label", "int32", ())),
        (1024, 4096, 4096, 1000),
        None,
        64,
        False,
        ("sgd", 0.01),
        40,
    ),
    "deep": Workload(
        ROOT / "bench" / "specs" / "deep.yaml",
        "python:random_rows:dense",
        (("x", "float32", (1024,)), ("label", "int32", ())),
        (*(1024,) * 24, 1000),
        None,
        512,
        False,
        ("sgd", 0.01),
        20,
    ),
    "mesh": Workload(
        ROOT / "bench" / "specs" / "mesh.yaml",
        "python:random_rows:mesh",
        (("x", "float32", (256,)), ("label", "int32", ())),
        (256, 512, 512, 10),
        None,
        4096,
        False,
        ("sgd", 0.01),
        40,
    ),
}


def plain(work: Workload, batch: int, steps: int) -> tuple[float, float]:
    """Return samples per second and CPU seconds per step of the model in plain JAX.

    The first step is not counted.
    """
    from placer.system.memory.allocator import keep_memory

    numel = sum(a * b for a, b in pairwise(work.sizes))
    keep_memory(4 * 4 * numel)

    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    from placer.readers import Column, Data, Order, open_source

    columns = [Column(*each) for each in work.inputs]
    rows = open_source(Data(work.source), columns, work.spec.parent)
    order = Order(rows.rows, batch, work.shuffle, 1, "drop")
    random = np.random.default_rng(0)
    layers = [
        (
            random.normal(0, (1 / a) ** 0.5, (a, b)).astype(np.float32),
            np.zeros(b, np.float32),
        )
        for a, b in pairwise(work.sizes)
    ]
    table = None
    if work.embedding is not None:
        table = random.normal(0, 0.05, work.embedding).astype(np.float32)
    parameters = jax.tree.map(jnp.array, (table, layers))
    optimizer = getattr(optax, work.optimizer[0])(work.optimizer[1])
    state = optimizer.init(parameters)

    def loss_of(parameters, x, label):
        table, layers = parameters
        if table is not None:
            x = table[x]
        for i, (w, b) in enumerate(layers):
            x = x @ w + b
            if i + 1 < len(layers):
                x = jax.nn.relu(x)
        return optax.softmax_cross_entropy_with_integer_labels(x, label).mean()

    def one(parameters, state, x, label):
        loss, gradients = jax.value_and_grad(loss_of)(parameters, x, label)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(parameters, updates), state, loss

    step = jax.jit(one, donate_argnums=(0, 1))
    names = [name for name, _, _ in work.inputs]
    begin = used = 0.0
    for number in range(steps):
        epoch, index = divmod(number, order.steps_per_epoch)
        local = rows.take(order.indices(epoch + 1, index))
        parameters, state, loss = step(parameters, state, *(local[n] for n in names))
        if number == 0:
            jax.block_until_ready(parameters)
            begin, used = time.perf_counter(), time.process_time()
        else:
            float(loss)  # as in a training loop that prints its loss
    jax.block_until_ready(parameters)
    rate = batch * (steps - 1) / (time.perf_counter() - begin)
    return rate, (time.process_time() - used) / (steps - 1)


def run_plain(name: str, batch: int, steps: int) -> tuple[float, float]:
    command = [sys.executable, __file__, name, "--plain", str(batch), str(steps)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    rate, used = json.loads(done.stdout)
    return rate, used


OPTIONS = {
    "shared": ["--transport", "shared"],
    "tcp": ["--transport", "tcp", "--insecure-network"],
    "tls": ["--transport", "tcp"],
}


def run_placed(build: Path, steps: int, transport: str) -> float:
    command = [sys.executable, "-m", "placer.command", "launch", str(build)]
    done = subprocess.run(
        [*command, "--json", "--steps", str(steps), *OPTIONS[transport]],
        check=True,
        capture_output=True,
        text=True,
    )
    return float(json.loads(done.stdout.splitlines()[-1])["samples_per_second"])


def workers_of(nodes: str) -> int:
    counts = dict(each.split("=") for each in nodes.split(","))
    return int(counts.get("worker", 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--nodes", default="worker=1,ps=1")
    parser.add_argument(
        "--transport", choices=OPTIONS, nargs="+", default=["shared"], metavar="NAME"
    )
    parser.add_argument("--plain", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    work = WORKLOADS[arguments.workload]
    if arguments.plain:
        print(json.dumps(plain(work, *arguments.plain)))
        return
    steps = arguments.steps or work.steps
    batch = work.batch  # of all workers together, so that the reference does the same
    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder) / "build"
        command = [sys.executable, "-m", "placer.command", "compile", str(work.spec)]
        subprocess.run(
            [*command, "--out", str(build), "--nodes", arguments.nodes],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        names = arguments.transport
        print(f"{os.cpu_count()} cores; {arguments.workload}, {batch} rows per step")
        print(f"  ms per step: one process; {arguments.nodes} over {', '.join(names)}")
        ones: list[float] = []
        placed: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(arguments.rounds):
            one, _ = run_plain(arguments.workload, batch, steps)
            ones.append(1e3 * batch / one)
            for name in names:
                placed[name].append(1e3 * batch / run_placed(build, steps, name))
            row = "".join(f"{placed[name][-1]:9.2f}" for name in names)
            print(f"  {ones[-1]:9.2f}{row}", flush=True)
        print(f"median of one process {statistics.median(ones):.2f} ms")
        for name in names:
            ratios = [mine / one for mine, one in zip(placed[name], ones, strict=True)]
            print(
                f"{name}: {statistics.median(placed[name]):.2f} ms, a step takes "
                f"{statistics.median(ratios):.2f}x of one process "
                f"({min(ratios):.2f} to {max(ratios):.2f})"
            )


if __name__ == "__main__":
    main()
