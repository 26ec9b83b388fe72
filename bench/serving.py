"""Measures publications of a sparse table, and the look-ups of a process that serves them.

    python bench/serving.py FOLDER [--rows 10000000] [--dim 16] [--changed 100000]

It prints the bytes of a changed row, the time from a step to a look-up in another process, the
time of a look-up with and without changes, and the longest wait of a request during a refresh.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

from placer.checkpoint.writing import write_tensors
from placer.plan.settings.sparse.table import SparseTable as Settings
from placer.publishing.code import prepare_code
from placer.publishing.folder import commit, temporary_folder
from placer.publishing.manifest import PARAMETERS, Publication, PublishedTable
from placer.publishing.rows_file import RowsFile
from placer.publishing.served import Served, load, look_up_rows
from placer.tables.sparse.table import SparseTable

BATCH = 1 << 16
CODE = {"model.py": b"", "prepare.py": b""}


def keys_of(numbers: np.ndarray) -> np.ndarray:
    """Return distinct keys that look random."""
    return numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)


class Training:
    """A table that is trained and published, without a model around it."""

    def __init__(self, folder: Path, dim: int, rows: int) -> None:
        self.folder, self.dim, self.number, self.step = folder, dim, 0, 0
        settings = Settings(name="t", dim=dim, rule="sgd", partitions=256)
        self.table = SparseTable(settings, 0)
        self.code = prepare_code(folder, CODE, [])
        for low in range(0, rows, 16 * BATCH):
            self.train(np.arange(low, min(low + 16 * BATCH, rows)))

    def train(self, numbers: np.ndarray) -> None:
        """Train the rows of some keys in a step."""
        self.step += 1
        gradients = np.ones((numbers.size, self.dim), np.float32)
        keys = keys_of(numbers)
        self.table.push(keys, gradients, learning_rate=0.1, step=self.step)

    def publish(self) -> tuple[int, float]:
        """Publish the rows of the last step, or all. Return the bytes, and the seconds of the
        scan for rows."""
        self.number += 1
        is_base = self.number == 1
        temporary = temporary_folder(self.folder, self.number, "bench")
        temporary.mkdir()
        scan, count = 0.0, 0
        with (
            RowsFile(temporary / "t.parquet", self.dim, "float32", "int64") as file,
            self.table.begin_save(
                since=None if is_base else self.step, values_only=True
            ) as save,
        ):
            begin = time.thread_time()
            for _, arrays in save.partitions():
                scan += time.thread_time() - begin
                file.add(arrays["keys"], arrays["values"])
                begin = time.thread_time()
            count = file.rows
            stored = file.finish()
        values = {"w": np.full(1000, self.number, np.float32)}
        files = {
            "t.parquet": stored,
            PARAMETERS: write_tensors(temporary, PARAMETERS, values),
        }
        before = self.number - 1
        commit(
            self.folder,
            temporary,
            Publication(
                number=self.number,
                id=str(self.number),
                before=before or None,
                before_id=str(before or ""),
                base=1,
                step=self.step,
                epoch=1,
                newest=None,
                written=time.time(),
                code=self.code,
                tables={
                    "t": PublishedTable(
                        self.dim, "float32", ("t.parquet",), (), count, 0
                    )
                },
                files=files,
            ),
        )
        return stored.nbytes, scan


def nanoseconds(served: Served, keys: np.ndarray) -> tuple[float, float]:
    """Return the median times of a look-up of one key, without and with the changes."""
    table = served.current()[1]["t"]
    times: tuple[list[float], list[float]] = [], []
    for _ in range(15):
        for of, which in zip(times, (table._replace(changes=None), table), strict=True):
            begin = time.perf_counter()
            look_up_rows(which, keys, lambda absent: 0.0)
            of.append((time.perf_counter() - begin) / keys.size * 1e9)
    return statistics.median(times[0]), statistics.median(times[1])


def follow(folder: Path) -> None:
    """Serve the folder: refresh again and again, and report each publication that a look-up sees."""
    served = load(folder)
    print(json.dumps({"number": served.state.number}), flush=True)
    while True:
        if served.refresh().is_new:
            _, tables = served.current()
            look_up_rows(tables["t"], keys_of(np.arange(1000)), lambda absent: 0.0)
            line = {"number": served.state.number, "seen": time.time()}
            print(json.dumps(line), flush=True)
        time.sleep(0.01)


def longest_wait(served: Served, rows: int) -> float:
    """Return the longest look-up of 1,000 keys while the table is refreshed, in milliseconds."""
    random, ends, times = np.random.default_rng(1), threading.Event(), []

    def request() -> None:
        while not ends.is_set():
            keys = keys_of(random.integers(0, rows, 1000))
            begin = time.perf_counter()
            _, tables = served.current()
            look_up_rows(tables["t"], keys, lambda absent: 0.0)
            times.append(time.perf_counter() - begin)

    thread = threading.Thread(target=request)
    thread.start()
    served.refresh()
    ends.set()
    thread.join()
    return max(times) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--changed", type=int, default=100_000)
    parser.add_argument("--follow", action="store_true")
    given = parser.parse_args()
    if given.follow:
        follow(given.folder)
    folder, random = given.folder, np.random.default_rng(0)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    training = Training(folder, given.dim, given.rows)
    begin = time.perf_counter()
    training.publish()
    wrote = time.perf_counter() - begin
    served = load(folder)
    loaded = time.perf_counter() - begin - wrote
    print(
        f"base of {given.rows:,} rows: written in {wrote:.1f} s, loaded in {loaded:.1f} s"
    )
    wanted = keys_of(random.integers(0, given.rows, 1 << 16))
    command = [sys.executable, __file__, str(folder), "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        for number in range(2, 7):
            training.train(random.permutation(given.rows)[: given.changed])
            begin = time.time()
            nbytes, scan = training.publish()
            written = time.time() - begin
            seen = json.loads(reader.stdout.readline())["seen"] - begin
            waited = longest_wait(served, given.rows)
            plain, changed = nanoseconds(served, wanted)
            size = nbytes / given.changed
            print(
                f"delta {number}: {size:.1f} bytes a row"
                f" ({size / (8 + 4 * given.dim):.3f} of 8 + 4 dim), scan {scan:.3f} s,"
                f" written after {written:.2f} s, seen after {seen:.2f} s;"
                f" look-ups {plain:.0f} ns, {changed / plain:.2f} of that with changes;"
                f" longest request {waited:.1f} ms",
                flush=True,
            )
        reader.kill()
    # Changes of more than a twentieth of the rows are merged.
    training.train(random.permutation(given.rows)[: given.rows // 15])
    training.publish()
    begin = time.perf_counter()
    waited = longest_wait(served, given.rows)
    merged = time.perf_counter() - begin
    print(f"merge in {merged:.1f} s: longest request {waited:.1f} ms")


if __name__ == "__main__":
    main()
