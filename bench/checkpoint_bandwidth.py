"""Measures how fast a checkpoint is written and read, against plain files.

Each round writes the same arrays twice, as a checkpoint and with plain writes into one
file, both with `fsync`. Then it reads both, after their pages were dropped from the
cache. The rounds alternate which comes first; the median of their ratios is printed.

    python bench/checkpoint_bandwidth.py FOLDER            # 1 GiB, 7 rounds
    python bench/checkpoint_bandwidth.py FOLDER --gib 4 --rounds 5
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from pathlib import Path
from statistics import median

import numpy as np

from placer.checkpoint.manifest import (
    VERSION,
    Manifest,
    Progress,
    StoredBlock,
    StoredData,
    StoredParameter,
)
from placer.checkpoint.reading import Checkpoint
from placer.checkpoint.writing import commit, temporary_folder, write_tensors
from placer.plan.settings.data.source import Data

PARAMETERS = 16
PIECE = 4 << 20


def write_checkpoint(folder: Path, arrays: dict[str, np.ndarray]) -> Path:
    """Write arrays as the values of parameters of one node."""
    temporary = temporary_folder(folder, 1, "bench")
    stored = write_tensors(temporary, "node.safetensors", arrays)
    parameters = {
        name: StoredParameter(
            str(array.dtype),
            array.shape,
            None,
            (),
            1,
            (StoredBlock("node.safetensors", name, 0, array.size),),
        )
        for name, array in arrays.items()
    }
    manifest = Manifest(
        version=VERSION,
        placer="",
        name="bench",
        sequence=1,
        build="",
        placement="",
        computation="",
        seed=0,
        train=StoredData(Data("npz:rows.npz", batch=1), 1, None),
        evaluation=None,
        progress=Progress(1, 1, 1, 1),
        parameters=parameters,
        files={"node.safetensors": stored},
        machines={},
    )
    return commit(folder, temporary, manifest)


def write_plain(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write the same bytes with plain writes and `fsync`."""
    with path.open("wb", buffering=0) as file:
        for array in arrays.values():
            view = array.view(np.uint8).data
            for low in range(0, len(view), PIECE):
                file.write(view[low : low + PIECE])
        os.fsync(file.fileno())


def read_checkpoint(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Read the values of all parameters into arrays."""
    checkpoint = Checkpoint(path)
    checkpoint.read(
        [
            each
            for name, array in arrays.items()
            for each in checkpoint.wanted(name, "value", 0, array.view(np.uint8).data)
        ]
    )


def read_plain(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Read the same bytes with plain reads."""
    with path.open("rb", buffering=0) as file:
        for array in arrays.values():
            view = array.view(np.uint8).data
            for low in range(0, len(view), PIECE):
                file.readinto(view[low : low + PIECE])


def drop_pages(path: Path) -> None:
    """Drop the pages of a file from the cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def timed(call, *args: object) -> float:
    """Return how long a call takes, in seconds."""
    start = time.perf_counter()
    call(*args)
    return time.perf_counter() - start


def one_round(
    folder: Path, arrays: dict[str, np.ndarray], out: dict[str, np.ndarray], first: bool
) -> dict[str, float]:
    """Return the seconds of each way; `first` is whether the checkpoint comes first."""
    plain, kept = folder / "plain", folder / "step-000001"
    seconds: dict[str, float] = {}

    def run(*calls: tuple[str, object]) -> None:
        for name, call in calls if first else calls[::-1]:
            seconds[name] = timed(call)

    run(
        ("save", lambda: write_checkpoint(folder, arrays)),
        ("plain write", lambda: write_plain(plain, arrays)),
    )
    for path in (plain, kept / "node.safetensors"):
        drop_pages(path)
    run(
        ("load", lambda: read_checkpoint(kept, out)),
        ("plain read", lambda: read_plain(plain, out)),
    )
    for name, array in arrays.items():
        assert np.array_equal(array[:100], out[name][:100])
    shutil.rmtree(kept)
    plain.unlink()
    return seconds


def measure(folder: Path, gib: float, rounds: int) -> list[dict[str, float]]:
    """Return the seconds of each way in each round, after one that is not counted."""
    size = int(gib * 2**30) // PARAMETERS // 4
    random = np.random.default_rng(0)
    arrays = {f"layer{i}.w": random.random(size, np.float32) for i in range(PARAMETERS)}
    out = {name: np.ones_like(array) for name, array in arrays.items()}
    return [
        one_round(folder, arrays, out, first=i % 2 == 0) for i in range(rounds + 1)
    ][1:]


def show(gib: float, rounds: list[dict[str, float]]) -> None:
    for name in rounds[0]:
        rate = gib / median(each[name] for each in rounds)
        print(f"{name:12} {rate:.2f} GiB/s")
    for ours, plain in (("save", "plain write"), ("load", "plain read")):
        ratios = [each[plain] / each[ours] for each in rounds]
        print(
            f"{ours}: {median(ratios):.2f} of {plain}s"
            f" ({min(ratios):.2f} to {max(ratios):.2f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    show(args.gib, measure(args.folder, args.gib, args.rounds))


if __name__ == "__main__":
    main()
