"""Listings of PaddlePaddle Fluid run unchanged, except for the name of the package."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.builds import check_same_builds, graph_lines
from support.clicks_demo import demo, write_clicks

import placer
from placer import Program
from placer.compiler.frontend.python.read import run_builder

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
    plan = placer.compile(demo(source=write_clicks(tmp_path)), tmp_path / "build")
    history = tmp_path / "history.jsonl"
    placer.launch(tmp_path / "build", history=history)
    lines = [json.loads(line)["metrics"] for line in history.read_text().splitlines()]
    assert len(lines) == 8
    assert lines[0][plan.settings.train.metrics[0]] == pytest.approx(
        np.log(2), abs=0.02
    )
