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
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from placer.plan.settings.sparse.table import SparseTable as Settings
from placer.runtime.node.tables_of_keys import Push, RowUpdate, TablesOfKeys
from placer.tables.key_sums import KeyPart, KeySums
from placer.tables.sparse.table import SparseTable

WIDTHS, STEPS, KEYS = (1, 16), 60, 2048 * 26
ONES = {width: np.ones((KEYS, width), np.float32) for width in WIDTHS}
"""Gradients, by their width."""
CASES = ("separate tables", "the same keys", "the same index")


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


def insert(groups: Sequence[TablesOfKeys], rows: int) -> None:
    """Give each key a row."""
    for low in range(0, rows, 1 << 16):
        keys = np.arange(low, min(low + (1 << 16), rows)).astype(np.uint64)
        keys *= np.uint64(0x9E3779B97F4A7C15)
        for group in groups:
            part = KeyPart(keys, np.ones(keys.size, np.uint32))
            zeros = [np.zeros((keys.size, t.settings.dim), "f4") for t in group.tables]
            group.push(
                [RowUpdate(KeySums(part, z), 0.1) for z in zeros], Push(0, 0, "")
            )


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
                KeySums(part, ONES[width][: part.keys.size]) for part in keys
            )
            totals.append(first + second)
        updates = [RowUpdate(total, 0.1) for total in totals]
        group.push(updates, Push(step + 1, step + 1, ""))


def groups_of(case: str) -> list[TablesOfKeys]:
    """Return the tables of a case, in groups of tables over the same keys."""
    first = make(None, WIDTHS[0])
    second = make(first if case == CASES[2] else None, WIDTHS[1])
    if case == CASES[0]:
        return [TablesOfKeys([first]), TablesOfKeys([second])]
    return [TablesOfKeys([first, second])]


def measure(case: str, rows: int) -> float:
    """Return the median CPU time of a step in milliseconds, after the first steps."""
    groups, random, times = groups_of(case), np.random.default_rng(1), []
    insert(groups, rows)
    for step in range(STEPS):
        keys = parts(random, rows)
        own = [[KeyPart(k.keys, k.occurrences) for k in keys] for _ in groups]
        begin = time.thread_time()
        step_of(groups, step, own)
        times.append((time.thread_time() - begin) * 1e3)
    return statistics.median(times[STEPS // 3 :])


def compare(rows: int) -> None:
    """Measure each case in a process of its own, three times in turn: the system may give huge
    pages to the first tables of a process only."""
    found: dict[str, list[float]] = {case: [] for case in CASES}
    for _ in range(3):
        for case in CASES:
            command = [sys.executable, __file__, "--rows", str(rows), "--case", case]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            found[case].append(float(done.stdout))
    for case, times in found.items():
        ratio = statistics.median(times) / statistics.median(found[CASES[0]])
        listed = ", ".join(f"{each:.2f}" for each in times)
        print(f"{case}: {listed} ms a step, {ratio:.2f}")


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
    parser.add_argument("--case", choices=CASES)
    given = parser.parse_args()
    if given.case:
        print(measure(given.case, given.rows))
    elif given.fill:
        fill(given.fill)
    else:
        compare(given.rows)


if __name__ == "__main__":
    main()
