"""A small spec with sparse tables, and its rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

ROWS, BATCH = 48, 24


def sparse_spec(*, servers: int = 2, cpu: Any = 1, **changes: Any) -> dict[str, Any]:
    """A model with two tables, of which two ops use the first.

    Args:
        servers: the servers; without any, the tables are on the workers.
        cpu: the CPU of a server.
        changes: keys of the ops `user` and `item`, and of `train`.
    """
    nodes: dict[str, Any] = {"worker": {"count": 2}}
    if servers:
        nodes["ps"] = {"count": servers, "devices": {"cpu": cpu}}
    place = "/node:ps/cpu" if servers else "/node:worker/cpu"
    optimizer = {"op": "adagrad", "learning_rate": 0.1, "place": place}
    user = {"sparse": True, "dim": 4, "admit": {"count": 2}} | changes.pop("user", {})
    item = {"sparse": True, "dim": 8} | changes.pop("item", {})
    return {
        "name": "clicks",
        "nodes": nodes,
        "inputs": {
            "user": "int64[batch]",
            "friend": "int64[batch]",
            "items": "int64[batch, 3]",
            "y": "int32[batch]",
        },
        "data": {
            "train": {"source": "npz:rows.npz", "batch": BATCH},
            "eval": {"source": "npz:rows.npz", "batch": BATCH},
        },
        "graph": [
            {"name": "u", "op": "embedding", "in": "user", **user},
            {"name": "f", "op": "embedding", "in": "friend", **user}
            | {"params": {"table": "u.table"}},
            {"name": "i", "op": "embedding", "in": "items", **item},
            {"name": "flat", "op": "flatten", "in": "i"},
            {"name": "h", "op": "concat", "in": ["u", "f", "flat"], "axis": 1},
            {"name": "z", "op": "fc", "in": "h", "size": 2},
            {"name": "loss", "op": "softmax_cross_entropy", "in": ["z", "y"]},
        ],
        "predict": {"outputs": ["z"]},
        "train": {"minimize": "loss", "epochs": 2, "optimizer": optimizer, **changes},
    }


def write_sparse_spec(folder: Path, **settings: Any) -> Path:
    """Write the spec and its rows to a folder; return the file of the spec."""
    rng = np.random.default_rng(0)
    keys = {name: rng.integers(0, 10, ROWS) for name in ("user", "friend")}
    items, y = rng.integers(0, 10, (ROWS, 3)), rng.integers(0, 2, ROWS)
    np.savez(folder / "rows.npz", items=items, y=y.astype(np.int32), **keys)
    file = folder / "clicks.yaml"
    file.write_text(json.dumps(sparse_spec(**settings), indent=1))
    return file
