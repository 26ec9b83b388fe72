"""The rate of reading a Parquet file with 26 hashed columns and 13 numeric ones, on one
core, beside pyarrow's own.

A round runs each way once, in an order that changes. Prints rows per second of CPU time,
the median and the range of all rounds, and the ratios to pyarrow in the same round. The
ways:

- `placer`: `open_source`, keys as int64[rows, 26] and numbers as float32[rows, 13];
- `pyarrow, to numpy`: batches of all columns, each as an array of numpy: texts are objects
  of Python, and integers are not hashed;
- `pyarrow, as it is`: batches as pyarrow has them, whose texts numpy does not get.

    python bench/reading.py
    python bench/reading.py --rows 2000000 --rounds 7
    python bench/reading.py --integers   # the hashed columns are of integers
    python bench/reading.py --memory     # the peak of memory instead
    python bench/reading.py --window 262144 --lanes 8   # placer reads an epoch of batches
                                                        # of 4096 rows through a window
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from placer.plan.settings.data.features import Feature
from placer.plan.settings.data.source import Data
from placer.plan.settings.data.window import Window
from placer.readers import Column, Order, open_pieces, open_source
from placer.readers.windows import WindowReader

HASHED, NUMERIC = 26, 13
SIZES = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
"""How many different values a hashed column has, in turn."""
ROWS_PER_GROUP = 100_000
ROWS_PER_BATCH = 16384
BATCH = 4096


def write_file(path: Path, rows: int, integers: bool) -> None:
    """Write a file like the Criteo logs: hashed columns are 8 hexadecimal digits, or
    integers, that follow a power law; numeric ones are float32."""
    schema = pa.schema(
        [(f"I{j + 1}", pa.float32()) for j in range(NUMERIC)]
        + [
            (f"C{j + 1}", pa.int64() if integers else pa.string())
            for j in range(HASHED)
        ]
    )
    random = np.random.default_rng(0)
    with pq.ParquetWriter(path, schema) as writer:
        for first in range(0, rows, ROWS_PER_GROUP):
            count = min(ROWS_PER_GROUP, rows - first)
            columns: list[pa.Array] = [
                pa.array(random.gamma(1, 100, count).astype(np.float32))
                for _ in range(NUMERIC)
            ]
            for j in range(HASHED):
                drawn = random.zipf(1.2, count) % SIZES[j % len(SIZES)]
                values = (drawn * 2654435761 + j) % 2**32
                columns.append(
                    pa.array(
                        values if integers else [f"{v:08x}" for v in values.tolist()]
                    )
                )
            writer.write_table(pa.table(columns, schema=schema), row_group_size=count)


def settings(path: Path, integers: bool) -> tuple[Data, list[Column]]:
    """Return the source and the inputs that placer reads."""
    feature = Feature(hash="C*", type="integer" if integers else "text")
    data = Data(
        f"parquet:{path.name}",
        features={"*.key": feature},
        columns={"keys": "*.key", "dense": "I*"},
    )
    inputs = [
        Column("keys", "int64", (HASHED,)),
        Column("dense", "float32", (NUMERIC,)),
    ]
    return data, inputs


def by_window(path: Path, integers: bool, window: Window) -> int:
    """Read an epoch of whole batches through a window; return the rows."""
    rows = open_pieces(*settings(path, integers), path.parent)
    order = Order(rows.rows, BATCH, window, 0, "drop")
    reader = WindowReader(order, rows)
    for step in range(order.steps_per_epoch):
        reader.take(1, step, [(0, BATCH)])
    return order.steps_per_epoch * BATCH


def by_placer(path: Path, integers: bool) -> int:
    """Read the file with placer; return the rows."""
    return open_source(*settings(path, integers), path.parent).rows


def by_pyarrow(path: Path, to_numpy: bool) -> int:
    """Read the file with pyarrow, batch by batch; return the rows."""
    count = 0
    with pq.ParquetFile(path, pre_buffer=False) as file:
        for batch in file.iter_batches(ROWS_PER_BATCH, use_threads=False):
            if to_numpy:
                for column in batch.columns:
                    column.to_numpy(zero_copy_only=False)
            count += batch.num_rows
    return count


def measure(ways: dict[str, Callable[[], int]], rounds: int) -> None:
    """Print the rates of all ways."""
    for way in ways.values():
        way()  # compiles, and reads the file into the page cache
    rates: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = time.process_time()
            rows = ways[name]()
            rates[name].append(rows / (time.process_time() - start))
    for name, each in rates.items():
        line = f"{name:20} {_range(each, 1e6)} million rows per second"
        for other in names[1:]:
            ratios = [a / b for a, b in zip(rates[names[0]], rates[other], strict=True)]
            if name == names[0]:
                line += f", {_range(ratios)} of {other}"
        print(line)


def _range(values: list[float], unit: float = 1) -> str:
    low, high = min(values) / unit, max(values) / unit
    return f"{statistics.median(values) / unit:.2f} ({low:.2f} to {high:.2f})"


def report_memory(path: Path, integers: bool, window: Window | None) -> None:
    """Print the peak of the memory of this process, and how much of it is for rows."""
    small = path.with_name("small.parquet")
    write_file(small, ROWS_PER_BATCH, integers)
    by_placer(small, integers)  # imports, and compiles
    before = _peak()
    if window is not None:
        by_window(path, integers, window)
        rows = window.window
    else:
        rows = by_placer(path, integers)
    nbytes = rows * (8 * HASHED + 4 * NUMERIC) / 2**20
    print(
        f"a file of {path.stat().st_size / 2**20:.0f} MiB, {nbytes:.0f} MiB of rows in"
        f" memory, a peak of {(_peak() - before) / 2**20:.0f} MiB besides what is imported"
    )


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--integers", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--window", type=int, help="rows of a window")
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    window = options.window and Window(options.window, options.lanes)
    if options.file is not None:
        report_memory(options.file, options.integers, window)
        return
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    pa.set_cpu_count(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        write_file(path, options.rows, options.integers)
        if options.memory:
            command = [sys.executable, __file__, *sys.argv[1:], "--file", str(path)]
            subprocess.run(command, check=True)
            return
        ways = {"placer": lambda: by_placer(path, options.integers)}
        if window is not None:
            ways = {"a window": lambda: by_window(path, options.integers, window)}
        measure(
            {
                **ways,
                "pyarrow, to numpy": lambda: by_pyarrow(path, True),
                "pyarrow, as it is": lambda: by_pyarrow(path, False),
            },
            options.rounds,
        )


if __name__ == "__main__":
    main()
