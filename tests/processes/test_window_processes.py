"""A set that is larger than the memory that its run may use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import placer

SPEC = """\
name: large
nodes: {worker: {count: 2}, ps: {count: 1}}
inputs: {x: "float32[batch, 64]", y: "int32[batch]"}
data:
  train:
    source: "parquet:rows.parquet"
    batch: 4096
    shuffle: {window: 16384, lanes: 8}
graph:
  - {name: o, op: fc, in: x, size: 2, place: /node:worker/cpu}
  - {name: loss, op: softmax_cross_entropy, in: [o, y], place: /node:worker/cpu}
train:
  minimize: loss
  optimizer: {op: sgd, learning_rate: 0.1, place: /node:ps/cpu}
"""
LAUNCH = """\
import resource
import placer

result = placer.launch("build")
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print("peak", result.steps, peak * (1 if __import__("sys").platform == "darwin" else 1024))
"""
GROUP = 4096
LARGE = 100 * GROUP  # 106 MB
BOUND = 40_000_000


def write(path: Path, rows: int) -> None:
    kind = pa.list_(pa.float32(), 64)
    schema = pa.schema([("x", kind), ("y", pa.int32())])
    rng = np.random.default_rng(0)
    options = {"compression": "none", "use_dictionary": False}
    with pq.ParquetWriter(path, schema, **options) as file:
        for _ in range(0, rows, GROUP):
            x = rng.random(GROUP * 64, np.float32)
            y = pa.array(rng.integers(0, 2, GROUP, np.int32))
            columns = [pa.FixedSizeListArray.from_arrays(pa.array(x), 64), y]
            file.write_table(pa.table(columns, schema=schema))


def peak_of(folder: Path, rows: int) -> int:
    """Return the largest memory that a process of a run over so many rows has used."""
    write(folder / "rows.parquet", rows)
    done = subprocess.run(
        [sys.executable, "-c", LAUNCH], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (line,) = (each for each in done.stdout.splitlines() if each.startswith("peak "))
    _, steps, peak = line.split()
    assert int(steps) == rows // 4096
    return int(peak)


def test_the_memory_of_a_run_does_not_grow_with_the_set(tmp_path: Path) -> None:
    (tmp_path / "large.yaml").write_text(SPEC)
    placer.compile(tmp_path / "large.yaml", tmp_path / "build")
    small = peak_of(tmp_path, 4 * GROUP)
    large = peak_of(tmp_path, LARGE)
    assert large - small < BOUND < LARGE * 64 * 4 // 2
