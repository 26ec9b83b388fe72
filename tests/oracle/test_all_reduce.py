"""Optimizers on several workers: gradients in ranges, sharded state, rings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

import placer
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

WORKERS = "/node:worker/cpu"
SIZE = 300
"""Of the hidden layer, so that its weights are divided."""
RULES = [
    {"op": "adam", "learning_rate": 0.01, "match": "h.*"},
    {"op": "momentum", "learning_rate": 0.05, "match": "g.*"},
    {"op": "sgd", "learning_rate": 0.1},
]
SHARDED = {"shard_state": True}
RING = {"all_reduce": "ring"}
SUMMED = {"sum": "/node:ps"}


def spec(
    optimizers: list[dict[str, Any]], *, workers: int, servers: int = 0, **train: Any
) -> dict[str, Any]:
    nodes = {"worker": {"count": workers}}
    if servers:
        nodes["ps"] = {"count": servers}
    source = {"source": "npz:rows.npz", "batch": 12}
    return {
        "name": "exchanged",
        "nodes": nodes,
        "inputs": {"x": "float32[batch, 64]", "y": "int32[batch]"},
        "data": {"train": dict(source), "eval": source},
        "graph": [
            {
                "place": WORKERS,
                "ops": [
                    {"name": "h", "op": "fc", "in": "x", "size": SIZE}
                    | {"activation": "tanh"},
                    {"name": "g", "op": "fc", "in": "h", "size": 9}
                    | {"activation": "tanh"},
                    {"name": "z", "op": "fc", "in": "g", "size": 5},
                    {"name": "loss", "op": "softmax_cross_entropy", "in": ["z", "y"]},
                ],
            }
        ],
        "train": {"minimize": "loss", "optimizer": optimizers, **train},
    }


def at(place: str, settings: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    return [{**rule, "place": place, **(settings or {})} for rule in RULES]


def compiled(content: dict[str, Any], folder: Path, name: str, **options: Any):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(36, 64)), rng.integers(0, 5, 36)
    np.savez(folder / "rows.npz", x=x.astype(np.float32), y=y.astype(np.int32))
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(content))
    return placer.compile(file, folder / name, **options)


def trained(content: dict[str, Any], folder: Path, name: str, **options: Any):
    """Train for a few steps; return the parameters and the evaluations."""
    compiled(content, folder, name, **options)
    saved = folder / f"{name}.safetensors"
    result = run_in_threads(folder / name, Options(steps=4, save_params=saved))
    return load_file(saved), result.eval


def test_parameters_have_the_bits_of_a_parameter_server(tmp_path):
    servers = spec(at("/node:ps"), workers=3, servers=2)
    expected, _ = trained(servers, tmp_path, "servers")
    for number, settings in enumerate(({}, SHARDED, SUMMED, {"sum": "/node:ps:1/cpu"})):
        workers = spec(at(WORKERS, settings), workers=3, servers=2)
        actual, _ = trained(workers, tmp_path, f"workers{number}")
        assert actual.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(actual[name], value, err_msg=name)


HYBRID = [
    {"op": "lamb", "learning_rate": 0.01, "match": "h.w", "weight_decay": 0.1}
    | {"place": WORKERS, **SHARDED, **RING},
    {"op": "adamw", "learning_rate": 0.01, "match": "h.b", "place": WORKERS, **SHARDED},
    {"op": "lars", "learning_rate": 0.1, "match": "g.*", "place": WORKERS, **RING},
    {"op": "adam", "learning_rate": 0.01, "match": "z.w", "place": "/node:ps"},
    {"op": "sgd", "learning_rate": 0.1, "place": WORKERS, **SUMMED},
]
"""Parameters in ranges, in rings, whole, on servers and summed there, under one norm."""


def test_exchanges_of_all_kinds_train_as_one_process(tmp_path):
    train = {"clip": {"global_norm": 0.1}, "microbatches": 2}
    content = spec(HYBRID, workers=3, servers=2, **train) | {"precision": "float64"}
    content["parameters"] = [{"match": "h.b", "decay": False}]
    expected, evaluated = trained(content, tmp_path, "one", single_process=True)
    actual, again = trained(content, tmp_path, "placed")
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=0, atol=1e-9, err_msg=name)
    assert again == pytest.approx(evaluated, rel=1e-9)


@pytest.mark.parametrize("settings", [{}, SHARDED, RING, SHARDED | RING])
def test_a_plan_says_what_a_step_sends_and_what_a_worker_stores(settings, tmp_path):
    content = spec([{**RULES[2], "place": WORKERS, **settings}], workers=4)
    plan = compiled(content, tmp_path, "build")
    numel = sum(int(np.prod(each.shape)) for each in plan.parameters)
    exchanged = [edge for edge in plan.step_edges if edge.is_flat]
    assert [edge.nbytes for edge in exchanged] == [3 * 4 * numel] * 2
    assert all(edge.ring == ("all_reduce" in settings) for edge in exchanged)
    tables = [node.tables[0] for node in plan.nodes]
    stored = [sum(b.stop - b.start for b in table.blocks) for table in tables]
    if "shard_state" in settings:
        assert sum(stored) == numel
        assert max(stored) < 1.05 * numel / 4
    else:
        assert stored == [numel] * 4
    assert all(table.in_place for table in tables)
    alone = compiled(content, tmp_path, "alone", single_process=True)
    flops = sum(node.flops for node in plan.nodes)
    assert flops == alone.nodes[0].flops
    exchange = sum(node.exchange_flops for node in plan.nodes)
    assert exchange >= 3 * numel
    whys = " ".join(choice.why for choice in plan.choices)
    assert ("in the order of the ring" in whys) == ("all_reduce" in settings)
    assert "each node sums its range of the gradients" in whys


def test_all_workers_share_one_program_of_a_few_lines(tmp_path):
    content = spec([{**RULES[0], "place": WORKERS, **SHARDED}], workers=4)
    content["train"]["optimizer"][0].pop("match")
    plan = compiled(content, tmp_path, "build")
    assert {node.program for node in plan.nodes} == {"worker/program.py"}
    program = (tmp_path / "build/worker/program.py").read_text()
    step = program[program.index("def step") : program.index("def evaluate")]
    lines = [line.split("  # ")[0].strip() for line in step.splitlines()[1:]]
    assert [line for line in lines if line and not line.startswith("#")] == [
        'p_range = node.parameters("dense", Dense)',
        "node.send(ALL_GATHER_PARAMETERS, p_range)",
        'x, y = node.read("x", "y")',
        "p = node.receive(ALL_GATHER_PARAMETERS, Dense)",
        "loss, g = forward_backward(x, p, y)",
        "node.record(loss=loss)",
        "node.send(REDUCE_SCATTER_GRADIENTS, g)",
        'node.update_from_edges("dense", REDUCE_SCATTER_GRADIENTS)',
    ]
