"""Measures a sparse table beside numpy and torch, on one core.

Rows of 10 M keys, dimension 16, Adagrad, float32, in batches of 65,536 keys, uniform and
Zipf with exponent 1.05. `np.take` and torch are given the numbers of the rows: they need
no index. Times are CPU times of the thread per key of a batch; medians over the batches.

    python bench/sparse_table.py
    python bench/sparse_table.py --save FOLDER    # and saves there, while it goes on
    python bench/modes.py --setup FOLDER
    python bench/sparse_table.py --setup FOLDER    # FBGEMM and TFRA, besides torch
    python bench/sparse_table.py --peers FOLDER
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from peers.environment import FOLDER, set_up_tables

from placer.plan.settings.sparse.table import Forgetting
from placer.plan.settings.sparse.table import SparseTable as Settings
from placer.tables.sparse.merging import number_keys, sum_rows
from placer.tables.sparse.saving import TableSave
from placer.tables.sparse.table import SparseTable

BATCH, DIM, SEED = 65536, 16, 1
ROUNDS = 15
_PEERS = {
    "torch EmbeddingBag with sparse Adagrad": ("", "torch_embedding.py"),
    "FBGEMM with exact Adagrad": ("fbgemm", "fbgemm_embedding.py"),
    "TFRA's hash table with Adagrad": ("tfra", "tfra_embedding.py"),
}
"""The environment of each peer, and its script."""
_FORGET = 1_000_000
"""Steps after which a key is forgotten."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--peers", type=Path, help="the environments of the peers")
    parser.add_argument("--setup", type=Path, help="install peers there, once")
    parser.add_argument("--save", type=Path, help="where to write a save")
    parser.add_argument("--index", choices=("wide", "compact"), default="wide")
    options = parser.parse_args()
    if options.setup:
        set_up_tables(options.setup)
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    keys = _keys(options.rows)
    table = _table(options.index)
    table.warm_up()
    # Rows take memory that the machine has not given out before, which can be slow, and
    # then again the same memory.
    pushes = _insert(table, keys)
    pause = max(pushes[1:]) - np.median(pushes)
    print(
        f"{options.rows:,} rows inserted, {sum(pushes) / options.rows * 1e9:.0f} ns each, in"
        f" new memory; pushes of {BATCH:,} keys took {np.median(pushes) * 1e3:.0f} ms, the"
        f" longest {pause * 1e3:.0f} ms more (<= 60)"
    )
    table.shrink(_FORGET + 1)
    pushes = _insert(table, keys, _FORGET + 1)
    print(f"again: {sum(pushes) / options.rows * 1e9:.0f} ns each")
    more = table.nbytes / table.rows - 128
    most = {"wide": 51, "compact": 36}[options.index]
    print(f"{more:.1f} bytes a row besides its value and slot (<= {most})")
    plain = np.ones((options.rows, DIM), np.float32)
    random = np.random.default_rng(0)
    gradients = random.standard_normal((BATCH, DIM), np.float32)
    for name, draw in _DRAWS.items():
        batches = [draw(random, options.rows) for _ in range(ROUNDS + 1)]
        _show(name, table, keys, plain, batches, gradients)
    _show_new(table, keys, random)
    _show_forgetting(table)
    if options.save:
        os.sched_setaffinity(0, cores)
        _show_saving(table, keys, random, options.save / "table.bin")
    if options.peers:
        _show_peers(options.peers, options.rows)


def _keys(rows: int) -> np.ndarray:
    random = np.random.default_rng(7)
    keys = np.unique(random.integers(0, 2**63, rows + rows // 20, np.uint64))[:rows]
    random.shuffle(keys)
    return keys


def _table(index: Literal["wide", "compact"]) -> SparseTable:
    settings = Settings(
        name="table",
        dim=DIM,
        rule="adagrad",
        init=("uniform", (-0.01, 0.01)),
        forget=Forgetting(unseen_steps=_FORGET),
        index=index,
    )
    return SparseTable(settings, SEED)


def _insert(table: SparseTable, keys: np.ndarray, step: int = 0) -> list[float]:
    """Return the seconds of each push."""
    zeros, times = np.zeros((BATCH, DIM), np.float32), []
    for low in range(0, keys.size, BATCH):
        part = keys[low : low + BATCH]
        begin = time.thread_time()
        table.push(part, zeros[: part.size], learning_rate=0.0, step=step)
        times.append(time.thread_time() - begin)
    return times


def _uniform(random: np.random.Generator, rows: int) -> np.ndarray:
    return random.integers(0, rows, BATCH)


def _zipf(random: np.random.Generator, rows: int) -> np.ndarray:
    """Ranks of a Zipf distribution with exponent 1.05, by the inverse of its integral."""
    a, u = 1.05, random.random(BATCH)
    ranks = (u * ((rows + 1) ** (1 - a) - 1) + 1) ** (1 / (1 - a)) - 1
    return np.minimum(ranks.astype(np.int64), rows - 1)


_DRAWS = {"uniform": _uniform, "zipf 1.05": _zipf}


def _per_key(run: Callable[[Any], object], batches: Sequence[Any]) -> float:
    """Return the nanoseconds per key, without the first batch."""
    times = []
    for batch in batches:
        start = time.thread_time()
        run(batch)
        times.append(time.thread_time() - start)
    return float(np.median(times[1:])) / BATCH * 1e9


def _show(
    name: str,
    table: SparseTable,
    keys: np.ndarray,
    plain: np.ndarray,
    batches: list[np.ndarray],
    gradients: np.ndarray,
) -> None:
    out = np.empty((BATCH, DIM), np.float32)
    asked = [keys[rows] for rows in batches]
    pull = _per_key(lambda batch: table.pull(batch, out), asked)

    def take(rows: np.ndarray) -> None:
        np.take(plain, rows, axis=0, out=out, mode="clip")

    taken = _per_key(take, batches)
    step = _FORGET + 1

    def push(batch: np.ndarray) -> None:
        nonlocal step
        step += 1
        distinct, numbers = number_keys(batch)
        sums = sum_rows(gradients, numbers, distinct.size)
        counts = np.bincount(numbers, minlength=distinct.size).astype(np.uint32)
        table.push(distinct, sums, learning_rate=0.1, step=step, occurrences=counts)

    pushed = _per_key(push, asked)
    print(
        f"{name}: pull {pull:.0f} ns, {1e3 / pull:.1f} M keys/s, {pull / taken:.2f}x of"
        f" np.take (<= 1.9); push {pushed:.0f} ns, {1e3 / pushed:.1f} M keys/s;"
        f" both {pull + pushed:.0f} ns"
    )


def _show_new(
    table: SparseTable, keys: np.ndarray, random: np.random.Generator
) -> None:
    """Distinct keys, of which none or one of ten is new."""
    zeros = np.zeros((BATCH, DIM), np.float32)
    step = 2 * _FORGET
    # Rows that are free, so that new ones need no new memory.
    _insert(table, np.arange(2**62, 2**62 + 4 * BATCH, dtype=np.uint64), step)
    step += _FORGET + 1
    _insert(table, keys, step)
    table.shrink(step)
    for share in (0, 0.1):
        batches = []
        for _ in range(ROUNDS + 1):
            batch = keys[random.choice(keys.size, BATCH, replace=False)]
            new = int(BATCH * share)
            batch[:new] = random.integers(2**63, 2**64, new, np.uint64)
            batches.append(np.unique(batch))
        taken = _per_key(
            lambda batch: table.push(
                batch, zeros[: batch.size], learning_rate=0.0, step=step
            ),
            batches,
        )
        print(f"push of distinct keys, {100 * share:.0f} % new: {taken:.0f} ns")


def _show_forgetting(table: SparseTable) -> None:
    slices = []
    for step in range(256):
        start = time.thread_time()
        table.forget(3 * _FORGET + 256 + step)
        slices.append(time.thread_time() - start)
    print(f"longest slice of forgetting {max(slices) * 1e3:.1f} ms (<= 10)")


def _show_saving(
    table: SparseTable, keys: np.ndarray, random: np.random.Generator, path: Path
) -> None:
    """A save by another thread, while this one pulls and pushes a batch after the other,
    and the same bytes without a table."""
    gradients = random.standard_normal((BATCH, DIM), np.float32)
    out = np.empty((BATCH, DIM), np.float32)
    batches = {}
    for name, draw in _DRAWS.items():
        drawn = [keys[draw(random, keys.size)] for _ in range(32)]
        batches[name] = [(each, *number_keys(each)) for each in drawn]
    step = 4 * _FORGET

    def train(name: str) -> float:
        nonlocal step
        step += 1
        batch, distinct, numbers = batches[name][step % 32]
        begin = time.thread_time()
        table.pull(batch, out)
        sums = sum_rows(gradients, numbers, distinct.size)
        table.push(distinct, sums, learning_rate=0.1, step=step)
        return time.thread_time() - begin

    for rest, name in [(True, None), *((False, name) for name in (*_DRAWS, *_DRAWS))]:
        alone = [] if rest else [train(name) for _ in range(100)]
        begin = time.perf_counter()
        save = table.begin_save()
        begun = time.perf_counter() - begin
        rate: list[float] = []
        thread = threading.Thread(target=_write_save, args=(save, path, rate))
        thread.start()
        during = []
        while not rest and thread.is_alive():
            during.append(train(name))
        thread.join()
        plain = _plain_rate(path)
        text = f"save: {rate[0] / 1e9:.2f} GB/s, {rate[0] / plain:.2f} of plain writes"
        if not rest:
            more = np.mean(during) / np.mean(alone) - 1
            text += (
                f"; {len(during)} steps of {BATCH:,} keys, {name}: {100 * more:.0f} % more"
                f" time than {np.mean(alone) * 1e3:.1f} ms without a save, longest"
                f" {max(during) * 1e3:.0f} ms; begun in {begun * 1e3:.1f} ms, waited"
                f" {save.waited * 1e3:.0f} ms"
            )
        print(text)
    path.unlink()


def _write_save(save: TableSave, path: Path, rate: list[float]) -> None:
    begin, nbytes = time.perf_counter(), 0
    with save, path.open("wb", buffering=0) as file:
        for _, arrays in save.partitions():
            for array in arrays.values():
                nbytes += file.write(memoryview(array).cast("B") if array.size else b"")
        os.fsync(file.fileno())
    rate.append(nbytes / (time.perf_counter() - begin))


def _plain_rate(path: Path) -> float:
    """Return the bytes per second of writing a file again, by pieces in memory."""
    size = path.stat().st_size
    piece = np.ones(6 << 20, np.uint8)
    begin = time.perf_counter()
    with path.with_suffix(".plain").open("wb", buffering=0) as file:
        for at in range(0, size, piece.size):
            file.write(memoryview(piece)[: size - at])
        os.fsync(file.fileno())
    seconds = time.perf_counter() - begin
    path.with_suffix(".plain").unlink()
    return size / seconds


def _show_peers(env: Path, rows: int) -> None:
    for name, (folder, script) in _PEERS.items():
        python = env / folder / "bin" / "python"
        if not python.exists():
            print(f"{name}: not there")
            continue
        command = [python, FOLDER / script, rows, BATCH, DIM]
        printed = subprocess.check_output(list(map(str, command)), text=True)
        for draw, (pull, train) in json.loads(printed.splitlines()[-1]).items():
            print(
                f"{name}, {draw}: lookup {pull:.0f} ns; lookup, gradients and update"
                f" {train:.0f} ns"
            )


if __name__ == "__main__":
    sys.exit(main())
