"""W1: seed 001's network, synchronous, one worker and one server, against one process.

The reference is the same model as plain JAX and optax in one process, the whole step under
one `jax.jit`, on the same rows in the same order. Rounds alternate, so that both meet the
same machine; medians and the ratio of each round are printed. `--nodes` tries other counts
(the batch stays 512 in all).

    python bench/w1.py
    python bench/w1.py --rounds 7 --steps 300
    python bench/w1.py --nodes worker=2,ps=1
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
from itertools import pairwise
from pathlib import Path

SPEC = Path(__file__).parent.parent / "specs" / "seed_ctr.yaml"
SIZES = (128, 1024, 512, 256, 2)


def plain(steps: int) -> float:
    """Samples per second of the model as one jitted step; the first step is left out."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    from placer.readers import Column, Order, open_source

    columns = [Column("ids", "int32", ()), Column("label", "int32", ())]
    source = "python:seed_ctr_rows:train"
    rows = open_source(source, columns, mapping=None, split=None, folder=SPEC.parent)
    order = Order(rows.rows, 512, True, 1, "drop")
    random = np.random.default_rng(0)
    layers = [
        (
            random.normal(0, (1 / a) ** 0.5, (a, b)).astype(np.float32),
            np.zeros(b, np.float32),
        )
        for a, b in pairwise(SIZES)
    ]
    table = random.normal(0, 0.05, (1000, 128)).astype(np.float32)
    parameters = jax.device_put((table, layers))
    optimizer = optax.adam(1e-4)
    state = optimizer.init(parameters)

    def loss_of(parameters, ids, label):
        table, layers = parameters
        x = table[ids]
        for i, (w, b) in enumerate(layers):
            x = x @ w + b
            if i + 1 < len(layers):
                x = jax.nn.relu(x)
        return optax.softmax_cross_entropy_with_integer_labels(x, label).mean()

    @jax.jit
    def step(parameters, state, ids, label):
        loss, gradients = jax.value_and_grad(loss_of)(parameters, ids, label)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(parameters, updates), state, loss

    begin = 0.0
    for number in range(steps):
        epoch, index = divmod(number, order.steps_per_epoch)
        taken = rows.take(order.indices(epoch + 1, index))
        parameters, state, loss = step(parameters, state, taken["ids"], taken["label"])
        if number == 0:
            jnp.asarray(loss).block_until_ready()
            begin = time.perf_counter()
        else:
            float(loss)  # as a training loop that shows its loss does
    return 512 * (steps - 1) / (time.perf_counter() - begin)


def run_plain(steps: int) -> float:
    command = [sys.executable, __file__, "--plain", str(steps)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout)


def run_placed(build: Path, steps: int) -> float:
    command = [sys.executable, "-m", "placer.command", "launch", str(build)]
    done = subprocess.run(
        [*command, "--json", "--steps", str(steps)],
        check=True,
        capture_output=True,
        text=True,
    )
    return float(json.loads(done.stdout.splitlines()[-1])["samples_per_second"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--nodes", default="worker=1,ps=1")
    parser.add_argument("--plain", type=int, metavar="STEPS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.plain:
        print(plain(arguments.plain))
        return
    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder) / "build"
        command = [sys.executable, "-m", "placer.command", "compile", str(SPEC)]
        subprocess.run(
            [*command, "--out", str(build), "--nodes", arguments.nodes],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        print(f"{os.cpu_count()} cores; samples/s: one process, {arguments.nodes}")
        ratios, ones, placeds = [], [], []
        for _ in range(arguments.rounds):
            ones.append(run_plain(arguments.steps))
            placeds.append(run_placed(build, arguments.steps))
            ratios.append(ones[-1] / placeds[-1])
            print(f"  {ones[-1]:9.0f}  {placeds[-1]:9.0f}  {ratios[-1]:5.2f}x")
        print(
            f"median {statistics.median(ones):.0f} and {statistics.median(placeds):.0f}:"
            f" a step takes {statistics.median(ratios):.2f}x of one process"
        )


if __name__ == "__main__":
    main()
