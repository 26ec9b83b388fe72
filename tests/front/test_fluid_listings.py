"""Listings of PaddlePaddle Fluid run unchanged, except for the name of the package."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from support.builds import check_same_builds, graph_lines

import placer
import placer as paddle
from placer import Program, device_guard, layers
from placer.front.read import run_builder

ROWS = """\
def rows():
    for _ in range(64):
        yield {"x": [[float(j) for j in range(12)]] * 12}
"""


LISTING = """\
import placer as fluid
from placer import append_backward


def build():
    with fluid.place_guard(place="/node:worker/gpu:0-7"):
        x = fluid.layers.data(name='x', shape=[12, 12], type='float32')
        fc1 = fluid.layers.fc(input=x, size=128)
        cost = fluid.layers.square(fc1)
        avg_cost = fluid.layers.mean(cost)
        append_backward()

    with fluid.place_guard(place="/node:worker/cpu"):
        opt = fluid.optimizer.SGD(learning_rate=0.1)
        opt.minimize(avg_cost)

    fluid.default_program().update(
        emulate=True,
        nodes={"worker": {"count": 1, "devices": {"cpu": 1, "gpu": 8}}},
        data={"train": {"source": "python:fluid_rows:rows", "batch": 16}},
    )
"""


@pytest.fixture
def listing(tmp_path: Path) -> Program:
    """A listing of Fluid: forward and backward on GPUs, the optimizer on CPUs."""
    (tmp_path / "fluid_rows.py").write_text(ROWS)
    (tmp_path / "fluid_listing.py").write_text(LISTING)
    return run_builder(f"{tmp_path}/fluid_listing.py:build")


def test_the_fluid_listing_compiles_like_its_yaml(
    listing: Program, tmp_path: Path
) -> None:
    text = check_same_builds(listing, tmp_path)
    assert graph_lines(text) == [
        "  - place: /node:worker/gpu:0-7",
        "    ops:",
        "      - {name: fc_0, op: fc, in: x, size: 128}",
        "      - {name: square_0, op: square, in: fc_0}",
        "      - {name: reduce_mean_0, op: reduce_mean, in: square_0}",
    ]
    assert "x: float32[batch, 12, 12]" in text
    assert "backward: /node:worker/gpu:0-7" in text
    assert "{op: sgd, learning_rate: 0.1, place: /node:worker/cpu}" in text


def test_the_fluid_listing_computes_on_gpus_and_updates_on_cpus(
    listing: Program, tmp_path: Path
) -> None:
    placer.compile(listing, tmp_path / "build")
    text = (tmp_path / "build" / "graph.txt").read_text()
    places = {
        line.split(" = ")[1].split("(")[0]: line.rpartition("@")[2]
        for line in text.splitlines()
        if " = " in line and "@/" in line
    }
    assert places["fc"] == places["fc.grad"] == "/node:worker/gpu"
    assert places["sgd"] == "/node:worker/cpu"
    assert "memcpy_d2h" in places
    assert "memcpy_h2d" in places


def test_the_fluid_listing_trains(listing: Program, tmp_path: Path) -> None:
    plan = placer.compile(listing, tmp_path / "build")
    assert plan.name == "fluid_listing"
    assert [node.name for node in plan.nodes] == ["worker:0"]
    assert (tmp_path / "build" / "fluid_rows.py").read_text() == ROWS
    history = tmp_path / "history.jsonl"
    placer.launch(tmp_path / "build", history=history)
    losses = [json.loads(line)["metrics"] for line in history.read_text().splitlines()]
    assert len(losses) == 4
    assert losses[-1]["reduce_mean_0"] < losses[0]["reduce_mean_0"]


def demo(is_sparse: bool = False, source: str = "npz:clicks.npz") -> Program:
    """A network of PaddlePaddle: embeddings on a CPU, the other layers on GPUs."""
    with Program(
        name="demo",
        emulate=True,
        nodes={"worker": {"count": 1, "devices": {"cpu": 1, "gpu": 1}}, "ps": {}},
        data={"train": {"source": source, "batch": 8}},
        slicing={"dispatch": "merged"},
    ) as program:
        with device_guard("cpu"):
            input_data = layers.data(
                name="sparse_input", shape=[None, 1], dtype="int64"
            )
            input_label = layers.data(name="label", shape=[None, 1], dtype="int64")
            label = layers.cast(input_label, dtype="int64")
            embedding = layers.embedding(
                input_data, is_sparse=is_sparse, size=[1000, 128]
            )

        with device_guard("gpu"):
            fc1 = layers.fc(embedding, size=1024, activation="relu")
            fc2 = layers.fc(fc1, size=512, activation="relu")
            fc3 = layers.fc(fc2, size=256, activation="relu")
            predict = layers.fc(fc3, size=2, activation="softmax")
            cost = layers.cross_entropy(input=predict, label=label)

        optimizer = paddle.optimizer.Adam(1e-4)
        optimizer.minimize(cost)
    return program


def test_the_paddle_network_compiles_like_its_yaml(tmp_path: Path) -> None:
    text = check_same_builds(demo(), tmp_path)
    assert graph_lines(text) == [
        "  - place: /cpu",
        "    ops:",
        "      - {name: cast_0, op: cast, in: label, dtype: int32}",
        "      - {name: embedding_0, op: embedding, in: sparse_input, size: [1000, 128]}",
        "  - place: /gpu",
        "    ops:",
        "      - {name: fc_0, op: fc, in: embedding_0, size: 1024, activation: relu}",
        "      - {name: fc_1, op: fc, in: fc_0, size: 512, activation: relu}",
        "      - {name: fc_2, op: fc, in: fc_1, size: 256, activation: relu}",
        "      - {name: fc_3, op: fc, in: fc_2, size: 2, activation: softmax}",
        "      - {name: clip_0, op: clip, in: fc_3, min: 1.0e-30}",
        "      - {name: log_0, op: log, in: clip_0}",
        "      - {name: softmax_cross_entropy_0, op: softmax_cross_entropy,"
        " in: [log_0, cast_0]}",
    ]


def test_the_paddle_network_has_the_same_parameters(tmp_path: Path) -> None:
    plan = placer.compile(demo(), tmp_path / "build")
    sizes = {p.name: p.dtype for p in plan.parameters}
    assert list(sizes) == [
        "embedding_0.table",
        *(f"fc_{i}.{key}" for i in range(4) for key in ("w", "b")),
    ]
    total = 0
    for parameter in plan.parameters:
        size = 1
        for dimension in parameter.shape:
            size *= dimension
        total += size if parameter.name != "embedding_0.table" else 0
    assert total == 788738


def test_the_paddle_network_trains(tmp_path: Path) -> None:
    ids = np.arange(64).reshape(64, 1)
    np.savez(tmp_path / "clicks.npz", sparse_input=ids, label=ids % 2)
    plan = placer.compile(demo(source=f"npz:{tmp_path}/clicks.npz"), tmp_path / "build")
    history = tmp_path / "history.jsonl"
    placer.launch(tmp_path / "build", history=history)
    lines = [json.loads(line)["metrics"] for line in history.read_text().splitlines()]
    assert len(lines) == 8
    assert lines[0][plan.metrics[0]] == pytest.approx(np.log(2), abs=0.02)


def test_is_sparse_makes_a_table_with_a_row_for_each_key(tmp_path: Path) -> None:
    ids = np.arange(64).reshape(64, 1)
    np.savez(tmp_path / "clicks.npz", sparse_input=ids, label=ids % 2)
    program = demo(is_sparse=True, source=f"npz:{tmp_path}/clicks.npz")
    plan = placer.compile(program, tmp_path / "build")
    (table,) = plan.sparse_tables
    assert (table.settings.dim, table.settings.rule, table.rows) == (128, "adam", 1000)
    dense = sum(math.prod(parameter.shape) for parameter in plan.parameters)
    assert dense == 788_738  # as the server of the listing says
