"""A small model whose runs are interrupted and continued, and comparisons of runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import load_file

import placer
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

ROWS = 22  # five batches of 4 and a short one


def spec(**changes: Any) -> dict[str, Any]:
    """Return a spec with statistics, draws, a schedule and a short last batch."""
    train = {
        "minimize": "loss",
        "epochs": 4,
        "metrics": ["loss", "auc"],
        "clip": {"global_norm": 0.5},
        "slicing": {"min_block": 4},
        "optimizer": {
            "op": "adam",
            "learning_rate": {"exponential": {"init": 0.05, "rate": 0.9, "steps": 3}},
            "place": "/node:ps",
        },
    } | changes.pop("train", {})
    return {
        "name": "resumed",
        "nodes": {"worker": {"count": 2}, "ps": {"count": 2}},
        "inputs": {"x": "float32[batch, 6]", "y": "int32[batch]"},
        "data": {
            "train": {
                "source": "npz:rows.npz",
                "batch": 4,
                "shuffle": True,
                "remainder": "keep",
            },
            "eval": {"source": "npz:rows.npz", "batch": 8},
        },
        "graph": [
            {
                "place": "/node:worker",
                "ops": [
                    {"name": "h", "op": "fc", "in": "x", "size": 8, "bias": False},
                    {"name": "n", "op": "batch_norm", "in": "h"},
                    {"name": "d", "op": "dropout", "in": "n", "rate": 0.3},
                    {"name": "o", "op": "fc", "in": "d", "size": 1},
                    {"name": "logit", "op": "reshape", "in": "o", "shape": ["batch"]},
                    {
                        "name": "loss",
                        "op": "sigmoid_cross_entropy",
                        "in": ["logit", "y"],
                    },
                    {"name": "auc", "op": "auc", "in": ["logit", "y"]},
                ],
            }
        ],
        "train": train,
        **changes,
    }


def build(folder: Path, model: dict[str, Any] | None = None, name: str = "b") -> Path:
    """Compile a spec in a folder, whose rows are always the same."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 6)).astype(np.float32)
    np.savez(folder / "rows.npz", x=x, y=(x[:, 0] > 0).astype(np.int32))
    (folder / f"{name}.yaml").write_text(
        yaml.safe_dump(model or spec(), sort_keys=False)
    )
    placer.compile(folder / f"{name}.yaml", folder / name)
    return folder / name


def run(folder: Path, **options: Any) -> placer.Result:
    return run_in_threads(folder, Options(**options))


def lines(history: Path) -> list[dict[str, Any]]:
    """Return the lines of a history without their times."""
    read = [json.loads(line) for line in history.read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in read]


def check_equal(one: Path, other: Path) -> None:
    """Check that two files of parameters have the same bits."""
    first, second = load_file(one), load_file(other)
    assert first.keys() == second.keys()
    for name, values in first.items():
        np.testing.assert_array_equal(values, second[name], err_msg=name)
