"""Measures the work of a server for two tables over the same keys, of widths 1 and 16.

A step has the keys of two workers, 2,048 rows of 26 keys each. Each worker's keys are looked up,
the gradients are merged by key, and the rows are updated. It is measured for two separate tables, for
tables that share their keys, and for tables that share their index as well. Times are CPU times of a
thread, medians over the steps.

    python bench/shared_index.py [--rows 1000000]
    python bench/shared_index.py --fill 10000000     # a table with a capacity of half the rows
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from placer.plan.settings.sparse.table import SparseTable as Settings
from placer.runtime.node.tables_of_keys import Push, RowUpdate, TablesOfKeys
from placer.tables.key_sums import KeyPart, KeySums
from placer.tables.sparse.table import SparseTable

WIDTHS, STEPS, KEYS = (1, 16), 60, 2048 * 26


def make(index_of: SparseTable | None, width: int) -> SparseTable:
    """Return an empty table."""
    settings = Settings(name=f"w{width}", dim=width, rule="adagrad", partitions=256)
    return SparseTable(settings, 0, index_of=index_of)


def parts(random: np.random.Generator, rows: int) -> list[KeyPart]:
    """Return the distinct keys of two workers."""
    found = []
    for _ in range(2):
        drawn = random.zipf(1.05, KEYS).astype(np.uint64) % np.uint64(rows)
        keys, counts = np.unique(drawn, return_counts=True)
        keys = keys * np.uint64(0x9E3779B97F4A7C15)
        found.append(KeyPart(keys, counts.astype(np.uint32)))
    return found


def step_of(groups: Sequence[TablesOfKeys], step: int, own: list[Any]) -> None:
    """Look up, merge and update the keys of two workers, for groups of tables."""
    for group, keys in zip(groups, own, strict=True):
        widths = [table.settings.dim for table in group.tables]
        for part in keys:
            out = [np.empty((part.keys.size, w), np.float32) for w in widths]
            group.read(part.keys, out, group.find(part.keys))
        totals = []
        for width in widths:
            first, second = (
                KeySums(part, np.ones((part.keys.size, width), np.float32))
                for part in keys
            )
            totals.append(first + second)
        updates = [RowUpdate(total, 0.1) for total in totals]
        group.push(updates, Push(step, step, ""))


def median(run: Callable[[int], None]) -> float:
    """Return the median CPU time of a step in milliseconds, after the first steps."""
    times = []
    for step in range(STEPS):
        begin = time.thread_time()
        run(step)
        times.append((time.thread_time() - begin) * 1e3)
    return statistics.median(times[STEPS // 3 :])


def compare(rows: int) -> None:
    """Print the times of a step."""
    first = make(None, WIDTHS[0])
    cases = {
        "separate tables": [TablesOfKeys([make(None, w)]) for w in WIDTHS],
        "the same keys": [TablesOfKeys([make(None, w) for w in WIDTHS])],
        "the same index": [TablesOfKeys([first, make(first, WIDTHS[1])])],
    }
    batches: dict[str, list[list[Any]]] = {}
    for name, groups in cases.items():
        random = np.random.default_rng(1)
        batches[name] = []
        for _ in range(STEPS):
            keys = parts(random, rows)
            again = [KeyPart(each.keys, each.occurrences) for each in keys]
            batches[name].append([keys, again][: len(groups)])
    times = {
        name: median(lambda step, n=name, g=groups: step_of(g, step, batches[n][step]))
        for name, groups in cases.items()
    }
    for name, spent in times.items():
        print(f"{name}: {spent:.2f} ms a step, {spent / times['separate tables']:.2f}")


def fill(rows: int) -> None:
    """Print the longest step while a table with a capacity fills, and after that."""
    for evict in ("lru", "lfu"):
        settings = Settings(
            name="t", dim=16, rule="adagrad", capacity=rows // 2, evict=evict
        )
        table, batch = SparseTable(settings, 0), 1 << 16
        table.warm_up()
        times = []
        for step in range(rows // batch):
            keys = np.arange(step * batch, (step + 1) * batch).astype(np.uint64)
            keys *= np.uint64(0x9E3779B97F4A7C15)
            gradients = np.ones((batch, 16), np.float32)
            begin = time.thread_time()
            table.push(keys, gradients, learning_rate=0.1, step=step)
            times.append((time.thread_time() - begin) * 1e3)
        half = len(times) // 2
        for name, some in (("fill", times[3:half]), ("full", times[half + 8 :])):
            middle = statistics.median(some)
            print(
                f"{evict}, {name}: median {middle:.1f} ms, longest {max(some):.1f} ms"
                f" ({max(some) / middle:.1f})"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--fill", type=int)
    given = parser.parse_args()
    if given.fill:
        fill(given.fill)
    else:
        compare(given.rows)


if __name__ == "__main__":
    main()
