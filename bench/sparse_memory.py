"""Measures the memory of a server with a sparse table of many keys, in a cgroup.

The worker trains bench/specs/many_keys.yaml for one epoch, in which each key occurs once, so
that each gets a row: of 16 float32 with a slot of Adagrad. The server's `memory:` is that of
the spec, and its cgroup has the same limit. It needs root, and a memory controller of cgroups,
of version 1 or 2.

    python bench/sparse_memory.py
    python bench/sparse_memory.py --keys 5000000
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import placer
from placer.channel.ports import free_endpoints

SPECS = Path(__file__).parent / "specs"
KEYS_OF_ROW, BATCH, LIMIT = 64, 8192, 12 << 30
CGROUPS = Path("/sys/fs/cgroup")


def make_cgroup() -> tuple[Path, Path]:
    """Make a cgroup with the limit; return its folder, and the file with its peak."""
    is_first = (CGROUPS / "memory").exists()
    folder = CGROUPS / ("memory" if is_first else "") / f"sparse_memory_{os.getpid()}"
    folder.mkdir()
    limit = "memory.limit_in_bytes" if is_first else "memory.max"
    (folder / limit).write_text(str(LIMIT))
    peak = "memory.max_usage_in_bytes" if is_first else "memory.peak"
    return folder, folder / peak


def write_rows(path: Path, keys: int) -> None:
    """Write rows of distinct keys, uniform in all 64-bit integers, and their labels."""
    random = np.random.default_rng(0)
    ids = random.integers(-(2**63), 2**63 - 1, keys, np.int64)
    assert len(np.unique(ids)) == keys
    label = random.integers(0, 2, (keys // KEYS_OF_ROW, 1)).astype(np.float32)
    np.savez(path, ids=ids.reshape(-1, KEYS_OF_ROW), label=label)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=50_000_000)
    keys = -(-parser.parse_args().keys // (KEYS_OF_ROW * BATCH)) * KEYS_OF_ROW * BATCH
    cgroup, peak = make_cgroup()
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            shutil.copy(SPECS / "many_keys.yaml", folder)
            write_rows(folder / "many_keys.npz", keys)
            placer.compile(folder / "many_keys.yaml", folder / "build")
            run(folder, cgroup)
            used = int(peak.read_text())
        print(
            f"peak of the server's cgroup {used / 2**30:.2f} GiB of {LIMIT >> 30} GiB"
        )
    finally:
        cgroup.rmdir()


def run(folder: Path, cgroup: Path) -> None:
    """Run the build, its server in the cgroup; print the table and the rate."""
    nodes = ["worker:0", "ps:0"]
    endpoints = ",".join(f"{n}={a}" for n, a in free_endpoints(nodes).items())
    history = folder / "history.jsonl"
    command = [sys.executable, "-m", "placer", "run", str(folder / "build")]
    command += ["--endpoints", endpoints, "--history", str(history), "--node"]
    joins = ["sh", "-c", f'echo $$ > {cgroup}/cgroup.procs; exec "$@"', "sh"]
    begin = time.monotonic()
    server = subprocess.Popen([*joins, *command, "ps:0"], stdout=subprocess.DEVNULL)
    try:
        subprocess.run([*command, "worker:0"], check=True)
        if server.wait():
            raise RuntimeError(f"the server ended with {server.returncode}")
    finally:
        server.kill()
        server.wait()
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    steps = sum("step" in line for line in lines)
    print(f"{steps} steps in {time.monotonic() - begin:.0f} s with the start")


if __name__ == "__main__":
    main()
