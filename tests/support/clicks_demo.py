"""The networks of PaddlePaddle's guide to parameter servers: an embedding and four layers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

import placer as paddle
from placer import Program, Variable, device_guard, layers, place_guard

LookUp = Callable[[Variable], Variable]
Guard = Callable[[str], AbstractContextManager[None]]
NODES: dict[str, Any] = {
    "worker": {"count": 1, "devices": {"cpu": 1, "gpu": 1}},
    "ps": {},
}
"""The cluster of the demo: its GPU is the worker's."""


def write_clicks(folder: Path) -> str:
    """Write 64 rows, and return their source."""
    ids = np.arange(64).reshape(64, 1)
    np.savez(folder / "clicks.npz", sparse_input=ids, label=ids % 2)
    return f"npz:{folder}/clicks.npz"


def demo(
    look_up: LookUp | None = None,
    *,
    source: str = "npz:clicks.npz",
    heter: bool = False,
    **sections: Any,
) -> Program:
    """Return a program with the embedding on a CPU and the other layers on a GPU: that of
    the worker, or that of a heter node.

    Args:
        look_up: the embedding; by default that of a dense table.
        source: the rows.
        heter: whether the GPU is that of a heter node.
        sections: others of the program, or other ones.
    """

    def guard(device: str) -> AbstractContextManager[None]:
        if heter:
            kind = "worker" if device == "cpu" else "heter"
            return place_guard(f"/node:{kind}/{device}")
        return device_guard(device)

    nodes = NODES
    if heter:
        nodes = {"worker": {}, "heter": {"devices": {"gpu": 1}}, "ps": {}}
    with Program(
        name="demo",
        emulate=True,
        **{
            "nodes": nodes,
            "data": {"train": {"source": source, "batch": 8}},
            "slicing": {"dispatch": "merged"},
            **sections,
        },
    ) as program:
        with guard("cpu"):
            input_data = layers.data(
                name="sparse_input", shape=[None, 1], dtype="int64"
            )
            input_label = layers.data(name="label", shape=[None, 1], dtype="int64")
            label = layers.cast(input_label, dtype="int64")
            if look_up is None:
                embedding = layers.embedding(input_data, size=[1000, 128])
            else:
                embedding = look_up(input_data)

        with guard("gpu"):
            fc1 = layers.fc(embedding, size=1024, activation="relu")
            fc2 = layers.fc(fc1, size=512, activation="relu")
            fc3 = layers.fc(fc2, size=256, activation="relu")
            predict = layers.fc(fc3, size=2, activation="softmax")
            cost = layers.cross_entropy(input=predict, label=label)

        optimizer = paddle.optimizer.Adam(1e-4)
        optimizer.minimize(cost)
    return program
