"""Compares small placed models on rows of three numbers with plain JAX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from support.run_ways import check_all_same, run_three_ways

CLASSES = 7
INPUTS = {"x": "float32[batch, 3]", "y": "float32[batch, 1]", "id": "int32[batch]"}


def op(
    name: str,
    kind: str,
    inputs: str | Sequence[str] | None = None,
    place: str | None = None,
    **attrs: Any,
) -> dict[str, Any]:
    """Return an entry of the section `graph` of a spec."""
    entry: dict[str, Any] = {"name": name, "op": kind, **attrs}
    if inputs is not None:
        entry["in"] = inputs
    return entry if place is None else {**entry, "place": place}


def check_against_plain_jax(
    nodes: Mapping[str, Any],
    graph: Sequence[Mapping[str, Any]],
    shapes: Mapping[str, tuple[int, ...]],
    train: Mapping[str, Any],
    folder: Path,
    *,
    batch: int = 12,
    rows: tuple[int, int] = (29, 17),
    emulate: bool = True,
) -> None:
    """Train a model as placed, as one process and as plain JAX; check for equal
    results.

    All is in float64, with random parameters and rows. `train` is that section of the
    spec; the loss is the op `loss`. `rows` are the numbers of rows to train on and to
    evaluate on.
    """
    random = np.random.default_rng(3)

    def random_rows(count: int) -> dict[str, np.ndarray]:
        return {
            "x": random.uniform(-1, 1, (count, 3)),
            "y": random.uniform(-1, 1, (count, 1)),
            "id": random.integers(0, CLASSES, count).astype(np.int32),
        }

    columns = {"train": random_rows(rows[0]), "eval": random_rows(rows[1])}
    source = {"source": "npz:train.npz", "batch": batch, "remainder": "keep"}
    spec = {
        "nodes": nodes,
        "precision": "float64",
        "emulate": emulate,
        "inputs": INPUTS,
        "data": {
            "train": {**source, "shuffle": True},
            "eval": {"source": "npz:eval.npz"},
        },
        "graph": graph,
        "train": {
            "minimize": "loss",
            "metrics": ["loss"],
            "clip": {"global_norm": 0.5},
            **train,
        },
    }
    initial = {n: np.asarray(random.uniform(-1, 1, s)) for n, s in shapes.items()}
    check_all_same(run_three_ways(spec, columns, initial, folder))
