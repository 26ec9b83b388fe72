"""What placer compiles for the cases of modes.py and wide.py."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import placer

SPECS = Path(__file__).parent / "specs"
UPDATE = "train.optimizer.update"


@dataclass(frozen=True)
class Build:
    """What placer compiles for a case, and the number of its nodes."""

    workload: str
    spec: str
    workers: int
    servers: int
    settings: Mapping[str, object] = field(default_factory=dict)

    def nodes(self) -> list[str]:
        workers = [f"worker:{i}" for i in range(self.workers)]
        return workers + [f"ps:{i}" for i in range(self.servers)]

    def compile(self, specs: Path, out: Path) -> None:
        counts = {"worker": self.workers} | (
            {"ps": self.servers} if self.servers else {}
        )
        placer.compile(specs / self.spec, out, nodes=counts, overrides=self.settings)


def _wide(mode: str, nodes: int, rows: str = "w2.npz") -> Build:
    """W2 with so many workers, and as many servers."""
    optimizers = {f"train.optimizer.{i}.update": mode for i in range(2)}
    data = {"data.train.batch": 1024 * nodes, "data.train.source": f"npz:{rows}"}
    return Build("w2", "w2.yaml", nodes, nodes, {**optimizers, **data})


BUILDS = {
    "w1_sync": Build("w1", "clicks.yaml", 2, 1),
    "w1_async": Build("w1", "clicks.yaml", 2, 1, {UPDATE: "async"}),
    "w1_geo": Build("w1", "clicks.yaml", 2, 1, {UPDATE: {"geo": {"every": 100}}}),
    "w3_servers": Build("w3", "dense.yaml", 2, 2, {"data.train.batch": 128}),
    "w3_all_reduce": Build("w3", "all_reduce.yaml", 2, 0),
    "wire": Build("w3", "dense.yaml", 1, 1),
    "w2_1_sync": _wide("sync", 1),
    "w2_1_async": _wide("async", 1),
    "w2_2_sync": _wide("sync", 2),
    "w2_2_async": _wide("async", 2),
    "w2_2_sync_10m": _wide("sync", 2, "w2_10m.npz"),
    "w2_2_async_10m": _wide("async", 2, "w2_10m.npz"),
}


def copy_specs(folder: Path) -> None:
    """Copy the specs, and write the rows of `clicks.yaml`: 2^20 ids with their labels."""
    shutil.copytree(SPECS, folder, dirs_exist_ok=True)
    random = np.random.default_rng(0)
    ids = random.integers(0, 1000, 1 << 20).astype(np.int32)
    flipped = random.random(len(ids)) < 0.1
    label = (random.integers(0, 2, 1000)[ids] ^ flipped).astype(np.int32)
    np.savez(folder / "clicks.npz", ids=ids, label=label)
