"""Numbers of rows as `sparse_table.py` draws them, and the times of a peer with them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

import numpy as np

ROUNDS = 8


def _draw(name: str, random: np.random.Generator, rows: int, batch: int) -> np.ndarray:
    if name == "uniform":
        return random.integers(0, rows, batch)
    a, u = 1.05, random.random(batch)
    ranks = (u * ((rows + 1) ** (1 - a) - 1) + 1) ** (1 / (1 - a)) - 1
    return np.minimum(ranks.astype(np.int64), rows - 1)


def use_one_core() -> None:
    """Let this process use one core; call it first."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def show_times(
    rows: int,
    batch: int,
    look_up: Callable[[np.ndarray], object],
    train: Callable[[np.ndarray], object],
) -> None:
    """Print, as JSON, nanoseconds of CPU per id for each distribution: of a lookup, and of
    all that trains a batch."""
    random = np.random.default_rng(0)
    # The rank of an id says nothing of where its row is.
    where = random.permutation(rows)
    found = {}
    for name in ("uniform", "zipf 1.05"):
        times = []
        for _ in range(ROUNDS):
            ids = where[_draw(name, random, rows, batch)]
            begin = time.process_time()
            look_up(ids)
            middle = time.process_time()
            train(ids)
            times.append((middle - begin, time.process_time() - middle))
        found[name] = list(np.median(times[1:], axis=0) / batch * 1e9)
    print(json.dumps(found))
