"""Compares a stream of files with one file of the same rows, and measures the gap between passes.

The model is `specs/wide_deep_sparse.yaml` with two workers and two servers. Each round trains both,
in turns. Prints for each run the rows per second after the first step, and for the stream the gap
of each pass: the time from its last step of the pass before to its first step, without the
median time of a step.

    python bench/streams.py FOLDER                # 6 files of 250,000 rows, 3 rounds
    python bench/streams.py FOLDER --files 24 --rounds 5
    python bench/streams.py FOLDER --in-memory    # without a window
    python bench/streams.py FOLDER --checkpoints  # with a checkpoint after each pass
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

SPECS = Path(__file__).parents[1] / "specs"
BATCH, WINDOW, LANES, ROWS_PER_GROUP = 4096, 131_072, 8, 10_000
KEYS, NUMBERS = 8, 4


def file_of(number: int, rows: int) -> pa.Table:
    """Return the rows of a file: keys that follow a power law, numbers and clicks."""
    rng = np.random.default_rng(number)
    columns: dict[str, np.ndarray] = {
        f"k{j}": rng.zipf(1.2, rows) % 10**5 + j * 10**6 for j in range(KEYS)
    }
    for j in range(NUMBERS):
        columns[f"n{j}"] = rng.normal(size=rows).astype(np.float32)
    columns["click"] = (rng.random(rows) < 0.3).astype(np.float32)
    return pa.table(columns)


def write_inputs(folder: Path, files: int, rows: int, *, in_memory: bool) -> None:
    """Write the files, the file with all rows, and a spec for each."""
    (folder / "clicks").mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(folder / "all.parquet", file_of(0, 1).schema) as whole:
        for number in range(files):
            table = file_of(number, rows)
            path = folder / "clicks" / f"{number}.parquet"
            pq.write_table(table, path, row_group_size=ROWS_PER_GROUP)
            whole.write_table(table, row_group_size=ROWS_PER_GROUP)
    spec = yaml.safe_load((SPECS / "wide_deep_sparse.yaml").read_text())
    train = {
        "batch": BATCH,
        "columns": {"keys": "k*", "numbers": "n*", "click": "click"},
        "shuffle": True if in_memory else {"window": WINDOW, "lanes": LANES},
    }
    stream = {**train, "source": "parquet:clicks/*.parquet", "stream": {"files": 1}}
    one = {**train, "source": "parquet:all.parquet"}
    for name, data, epochs in (("stream", stream, {}), ("one", one, {"epochs": 1})):
        changed = {
            **spec,
            "data": {"train": data},
            "train": {**spec["train"], **epochs, "metrics": ["loss"]},
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(changed, sort_keys=False))


def run(folder: Path, name: str, number: int, *, saves: bool) -> list[float]:
    """Train a spec. Return its rows per second, and the gaps between its passes."""
    out = folder / f"{name}-{number}"
    command = [sys.executable, "-m", "placer", "train", f"{name}.yaml", "--quiet"]
    command += ["--out", out.name, *(["--until", "now"] if name == "stream" else [])]
    command += ["--checkpoint", f"{out.name}-kept"] if saves else []
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(each) for each in (out / "history.jsonl").open()]
    steps = list(itertools.pairwise(lines))
    seconds = [after["seconds"] - before["seconds"] for before, after in steps]
    gaps = [
        length - median(seconds)
        for length, (before, after) in zip(seconds, steps, strict=True)
        if before["epoch"] != after["epoch"]
    ]
    return [BATCH * len(seconds) / sum(seconds), *gaps]


def main() -> None:
    """Measure what the module describes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", type=int, default=6)
    parser.add_argument("--rows", type=int, default=250_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--in-memory", action="store_true")
    parser.add_argument("--checkpoints", action="store_true")
    arguments = parser.parse_args()
    folder = arguments.folder
    write_inputs(folder, arguments.files, arguments.rows, in_memory=arguments.in_memory)
    ratios, gaps = [], []
    for number in range(arguments.rounds):
        one, *_ = run(folder, "one", number, saves=arguments.checkpoints)
        rate, *own = run(folder, "stream", number, saves=arguments.checkpoints)
        ratios.append(rate / one)
        gaps += own
        shown = " ".join(f"{gap:.3f}" for gap in own)
        print(f"one file {one:,.0f} rows/s  stream {rate:,.0f} rows/s  gaps {shown}")
    print(
        f"stream / one file: {median(ratios):.3f} ({min(ratios):.3f} to"
        f" {max(ratios):.3f}); gap {median(gaps):.3f} s (at most {max(gaps):.3f} s)"
    )


if __name__ == "__main__":
    main()
