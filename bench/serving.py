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

from placer.checkpoint.manifest import Stored
from placer.checkpoint.writing import write_tensors
from placer.publishing.code import prepare_code
from placer.publishing.folder import commit, temporary_folder
from placer.publishing.manifest import PARAMETERS, Publication, PublishedTable
from placer.publishing.rows_file import RowsFile
from placer.publishing.served import Served, load, look_up_rows

BATCH = 1 << 16
CODE = {"model.py": b"", "prepare.py": b""}


def keys_of(numbers: np.ndarray) -> np.ndarray:
    """Return distinct keys that look random."""
    return numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def publish(folder: Path, number: int, rows: np.ndarray, dim: int, base: int) -> int:
    """Write a publication of these rows; return the bytes of its rows."""
    code = prepare_code(folder, CODE, [])
    temporary = temporary_folder(folder, number, "bench")
    temporary.mkdir()
    with RowsFile(temporary / "t.parquet", dim, "float32", "int64") as file:
        for low in range(0, rows.size, BATCH):
            some = rows[low : low + BATCH]
            values = np.full((some.size, dim), number, np.float32)
            values[:, 0] = some % 1000
            file.add(keys_of(some), values)
        stored = file.finish()
    files: dict[str, Stored] = {"t.parquet": stored}
    files[PARAMETERS] = write_tensors(
        temporary, PARAMETERS, {"w": np.full(1000, number, np.float32)}
    )
    table = PublishedTable(dim, "float32", ("t.parquet",), (), rows.size, 0)
    commit(
        folder,
        temporary,
        Publication(
            number=number,
            id=str(number),
            before=number - 1 or None,
            before_id=str(number - 1) if number > 1 else "",
            base=base,
            step=number,
            epoch=1,
            newest=None,
            written=time.time(),
            code=code,
            tables={"t": table},
            files=files,
        ),
    )
    return stored.nbytes


def nanoseconds(served: Served, keys: np.ndarray) -> float:
    """Return the median time of a look-up of one key."""
    table = served.current()[1]["t"]

    def once() -> float:
        begin = time.perf_counter()
        look_up_rows(table, keys, lambda absent: 0.0)
        return (time.perf_counter() - begin) / keys.size * 1e9

    return statistics.median(once() for _ in range(9))


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
    begin = time.perf_counter()
    publish(folder, 1, np.arange(given.rows), given.dim, 1)
    wrote = time.perf_counter() - begin
    served = load(folder)
    loaded = time.perf_counter() - begin - wrote
    print(
        f"base of {given.rows:,} rows: written in {wrote:.1f} s, loaded in {loaded:.1f} s"
    )
    wanted = keys_of(random.integers(0, given.rows, 1 << 16))
    plain = nanoseconds(served, wanted)
    command = [sys.executable, __file__, str(folder), "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        for number in range(2, 7):
            changed = random.permutation(given.rows)[: given.changed]
            begin = time.time()
            nbytes = publish(folder, number, changed, given.dim, 1)
            written = time.time() - begin
            seen = json.loads(reader.stdout.readline())["seen"] - begin
            waited = longest_wait(served, given.rows)
            ratio = nanoseconds(served, wanted) / plain
            size = nbytes / given.changed
            print(
                f"delta {number}: {size:.1f} bytes a row"
                f" ({size / (8 + 4 * given.dim):.3f} of 8 + 4 dim),"
                f" written after {written:.2f} s, seen after {seen:.2f} s;"
                f" look-ups {plain:.0f} ns, {ratio:.2f} of that with changes;"
                f" longest request {waited:.1f} ms",
                flush=True,
            )
        # Changes of more than a twentieth of the rows are merged.
        changed = random.permutation(given.rows)[: given.rows // 15]
        publish(folder, 7, changed, given.dim, 1)
        waited = longest_wait(served, given.rows)
        print(f"merge of {changed.size:,} rows: longest request {waited:.1f} ms")
        reader.kill()


if __name__ == "__main__":
    main()
