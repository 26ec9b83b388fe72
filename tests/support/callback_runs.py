"""A small model of workers and servers, for tests of callbacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import placer
from support.small_models import two_layers

ROWS, BATCH = 20, 8
STEPS_PER_EPOCH = 3
"""The last batch of an epoch has 4 rows."""


def compile_for_callbacks(
    folder: Path,
    each: int = 2,
    servers: int | None = None,
    *,
    epoch: int = ROWS,
    every: int = 2,
    update: str = "sync",
) -> Path:
    """Compile a model that is evaluated after every second step, for so many workers, as
    many servers by default, and so many rows; return the build."""
    draw = np.random.default_rng(1).normal
    rows = {"x": draw(size=(epoch, 16)), "y": draw(size=(epoch, 4))}
    np.savez(folder / "rows.npz", **{k: v.astype(np.float32) for k, v in rows.items()})
    spec = two_layers(
        nodes=f"{{worker: {{count: {each}}}, ps: {{count: {servers or each}}}}}",
        batch=BATCH,
        optimizer="{op: sgd, learning_rate: 0.1, place: /node:ps/cpu"
        f", update: {update}}}",
        train=f"  eval: {{every: {every}}}",
    )
    spec = spec.replace("batch: 8}", "batch: 8, remainder: keep}")
    spec = spec.replace(
        "graph:\n", '  eval: {source: "npz:rows.npz", batch: 8}\ngraph:\n'
    )
    (folder / "small.yaml").write_text(spec)
    placer.compile(folder / "small.yaml", folder / "build")
    return folder / "build"


class Recorder(placer.Callback):
    """Appends each call to a list that several callbacks may share."""

    def __init__(self, calls: list[tuple[Any, ...]], name: str = "") -> None:
        self.calls, self.name = calls, name

    def on_step(self, record: placer.Record) -> None:
        self.calls.append((self.name, "step", record))

    def on_evaluation(self, record: placer.Record) -> None:
        self.calls.append((self.name, "evaluation", record))

    def on_epoch(self, record: placer.Record) -> None:
        self.calls.append((self.name, "epoch", record))
