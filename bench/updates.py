"""The cost of an update of 100 MB of float32 on one core: a table in place, compared
with numpy and jitted optax.

Prints CPU milliseconds per update, the median and the minimum of all rounds. A round
runs each implementation once. Optax either donates all arrays, or keeps the old values,
as it must if there may still be readers.

    python bench/updates.py
    python bench/updates.py --rounds 21
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import numpy as np

from placer.plan.plan import MEMORY, Table
from placer.plan.settings.training.slicing import Block
from placer.system.memory.allocator import keep_memory
from placer.tables.dense import DenseTable

SIZE = 25_000_000
RATE, B1, B2, EPS = 1e-3, 0.9, 0.999, 1e-8


def by_table(rule: str, gradient: np.ndarray) -> Callable[[], object]:
    block = Block("w", "w", 0, SIZE, (SIZE,))
    initial = [np.zeros(SIZE, np.float32)]
    planned = Table(
        name="t",
        rule=rule,
        learning_rate=RATE,
        blocks=(block,),
        in_place=True,
        devices=MEMORY,
    )
    table = DenseTable(planned, "float32", initial)
    return lambda: table.update([gradient], learning_rate=RATE)


def by_numpy(rule: str, gradient: np.ndarray) -> Callable[[], object]:
    value, m, v = (np.zeros(SIZE, np.float32) for _ in range(3))
    steps = [0]

    def sgd() -> None:
        np.subtract(value, RATE * gradient, out=value)

    def adam() -> None:
        steps[0] += 1
        np.add(B1 * m, (1 - B1) * gradient, out=m)
        np.add(B2 * v, (1 - B2) * np.square(gradient), out=v)
        first, second = m / (1 - B1 ** steps[0]), v / (1 - B2 ** steps[0])
        np.subtract(value, RATE * first / (np.sqrt(second) + EPS), out=value)

    return {"sgd": sgd, "adam": adam}[rule]


def by_optax(rule: str, gradient: np.ndarray, keep: bool) -> Callable[[], object]:
    import jax
    import optax

    transform = getattr(optax, rule)(RATE)

    def step(value, state, gradient):
        change, state = transform.update(gradient, state, value)
        return optax.apply_updates(value, change), state

    jitted = jax.jit(step, donate_argnums=() if keep else (0, 1))
    value, gradient_on_device = jax.device_put((np.zeros(SIZE, np.float32), gradient))
    values_and_state = [value, transform.init(value)]

    def update() -> None:
        values_and_state[:] = jax.block_until_ready(
            jitted(*values_and_state, gradient_on_device)
        )

    return update


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11)
    rounds = parser.parse_args().rounds
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # before JAX counts cores
    keep_memory(4 * SIZE)
    gradient = np.random.default_rng(0).normal(size=SIZE).astype(np.float32)
    for rule in ("sgd", "adam"):
        implementations = {
            "table, in place": by_table(rule, gradient),
            "numpy": by_numpy(rule, gradient),
            "optax, donated": by_optax(rule, gradient, keep=False),
            "optax, kept": by_optax(rule, gradient, keep=True),
        }
        milliseconds: dict[str, list[float]] = {name: [] for name in implementations}
        for _ in range(rounds + 1):
            for name, update in implementations.items():
                begin = time.process_time()
                update()
                milliseconds[name].append(1000 * (time.process_time() - begin))
        for name, times in milliseconds.items():
            times = times[1:]  # the first round compiles
            print(
                f"{rule:5} {name:16} {statistics.median(times):7.1f} ms ({min(times):.1f})"
            )


if __name__ == "__main__":
    main()
