"""R1 across an interruption: train on one placement, continue on another, and compare
with one process that was not interrupted."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from support.checkpointed import lines

import placer
from placer.runtime.run.options import Options
from placer.runtime.run.threads import run_in_threads

pytestmark = pytest.mark.usefixtures("in_float64")

BATCH = 12
ROWS_OF_ALL = 40  # three batches and a short one
# Failures are not shrunk: an example takes seconds.
SETTINGS = settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)

OPTIMIZERS: list[dict[str, Any]] = [
    {"op": "sgd"},
    {"op": "momentum"},
    {"op": "adam"},
    {"op": "adamw", "weight_decay": 0.1},
    {"op": "rmsprop", "centered": True, "momentum": 0.5},
    {"op": "lamb"},
    {"op": "lars"},
]
RATES: list[Any] = [
    0.05,
    {"exponential": {"init": 0.05, "rate": 0.8, "steps": 2}},
    {"warmup": {"steps": 5, "then": {"cosine": {"init": 0.05, "steps": 9}}}},
]


@dataclass(frozen=True)
class Placement:
    """A cluster, the places of the two layers and of the optimizer, and the slicing."""

    nodes: dict[str, Any]
    first: str
    second: str
    optimizer: str | None
    slicing: dict[str, Any]
    emulate: bool = False


def device_kinds(count: int) -> dict[str, Any]:
    return {"count": count, "devices": {"cpu": 1, "gpu": 1}}


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    """One process, data parallelism, a pipeline or heter nodes, with the optimizer on
    servers or workers, in host memory or on devices."""
    slicing = {
        "min_block": draw(st.sampled_from([1, 4, 8192])),
        "dispatch": draw(st.sampled_from(["balanced", "round_robin", "hash"])),
    }
    workers, servers = draw(st.integers(1, 3)), draw(st.integers(0, 3))
    gpu = draw(st.booleans())
    nodes: dict[str, Any] = {"worker": device_kinds(workers)}
    if servers:
        nodes["ps"] = device_kinds(servers)
    device = "/gpu" if gpu else ""
    first = second = f"/node:worker{device}"
    optimizer = f"/node:ps{device}" if servers else first
    match draw(st.sampled_from(["data", "pipeline", "heter"])):
        case "pipeline" if workers > 1:
            first, second = f"/node:worker:0{device}", f"/node:worker:1{device}"
            optimizer = f"/node:ps{device}" if servers else None
        case "heter":
            nodes["heter"] = device_kinds(draw(st.integers(1, workers)))
            second = f"/node:heter{device}"
            optimizer = f"/node:ps{device}" if servers else None
    return Placement(nodes, first, second, optimizer, slicing, emulate=True)


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    """What stays the same: ops with state and draws, and the training."""
    layers: list[dict[str, Any]] = [
        {"name": "h", "op": "fc", "in": "x", "size": 4, "bias": False}
    ]
    last = "h"
    if draw(st.booleans()):
        layers.append({"name": "n", "op": "batch_norm", "in": last})
        last = "n"
    if draw(st.booleans()):
        layers.append({"name": "d", "op": "dropout", "in": last, "rate": 0.3})
        last = "d"
    layers.append({"name": "a", "op": "tanh", "in": last})
    rule = dict(draw(st.sampled_from(OPTIMIZERS)))
    rule["learning_rate"] = draw(st.sampled_from(RATES))
    microbatches = draw(st.sampled_from([1, 2]))
    train = {
        "optimizer": rule,
        "microbatches": microbatches,
        "metrics": ["loss", "auc"],
    }
    clip = draw(st.sampled_from([None, {"global_norm": 0.5}, {"norm": 0.3}]))
    if clip:
        train["clip"] = clip
    keep = microbatches == 1 and draw(st.booleans())
    return {"layers": layers, "train": train, "remainder": "keep" if keep else "drop"}


def compile_placed(
    model: dict[str, Any], placement: Placement, out: Path, **options: Any
):
    """Compile a model as placed into a folder beside its rows."""
    rule = dict(model["train"]["optimizer"])
    if placement.optimizer is not None:
        rule["place"] = placement.optimizer
    head = [
        {"name": "o", "op": "fc", "in": "a", "size": 1},
        {"name": "logit", "op": "reshape", "in": "o", "shape": ["batch"]},
        {"name": "loss", "op": "sigmoid_cross_entropy", "in": ["logit", "y"]},
        {"name": "auc", "op": "auc", "in": ["logit", "y"]},
    ]
    source = {"source": "npz:rows.npz", "batch": BATCH}
    spec = {
        "name": "resumed",
        "precision": "float64",
        "emulate": placement.emulate,
        "nodes": placement.nodes,
        "inputs": {"x": "float64[batch, 6]", "y": "int32[batch]"},
        "data": {
            "train": {**source, "shuffle": True, "remainder": model["remainder"]},
            "eval": source,
        },
        "graph": [
            {"place": placement.first, "ops": model["layers"]},
            {"place": placement.second, "ops": head},
        ],
        "train": {
            "minimize": "loss",
            "epochs": 4,
            **model["train"],
            "optimizer": rule,
            "slicing": placement.slicing,
        },
    }
    text = out.with_suffix(".yaml")
    text.write_text(yaml.safe_dump(spec, sort_keys=False))
    placer.compile(text, out, **options)
    return out


def check_resumed(
    model: dict[str, Any], one: Placement, other: Placement, at: int, steps: int
) -> None:
    """Train `at` steps on `one`, continue to `steps` on `other`, and compare."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS_OF_ALL, 6))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.savez(folder / "rows.npz", x=x, y=(x[:, 0] > 0).astype(np.int32))
        alone = compile_placed(model, one, folder / "alone", single_process=True)
        first = compile_placed(model, one, folder / "first")
        second = compile_placed(model, other, folder / "second")
        whole, parts = folder / "whole.jsonl", folder / "parts.jsonl"
        expected, actual = folder / "expected", folder / "actual"
        run_in_threads(alone, Options(steps=steps, history=whole, save_params=expected))
        kept = folder / "checkpoints"
        run_in_threads(
            first,
            Options(steps=at, history=parts, checkpoint=kept, checkpoint_every="9"),
        )
        resumed = Options(steps=steps, history=parts, resume=kept, save_params=actual)
        run_in_threads(second, resumed)
        values = load_file(actual)
        for parameter, wanted in load_file(expected).items():
            np.testing.assert_allclose(
                values[parameter], wanted, rtol=1e-9, atol=1e-9, err_msg=parameter
            )
        for line, wanted in zip(lines(parts), lines(whole), strict=True):
            if line["step"] != at:  # an evaluation follows the last step of a run
                check_line(line, wanted)


def check_line(line: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert line.keys() == wanted.keys()
    assert (line["step"], line["epoch"]) == (wanted["step"], wanted["epoch"])
    for key in line.keys() & {"metrics", "eval"}:
        for name, value in wanted[key].items():
            if value is None:
                assert line[key][name] is None
            else:
                assert line[key][name] == pytest.approx(value, rel=1e-9, abs=1e-9)


CASES = given(
    model=models(),
    one=placements(),
    other=placements(),
    at=st.integers(1, 7),
    more=st.integers(1, 6),
)


@CASES
@settings(SETTINGS, max_examples=5, derandomize=True)
def test_a_run_continues_on_any_placement(model, one, other, at, more):
    check_resumed(model, one, other, at, at + more)


@pytest.mark.slow
@CASES
@settings(SETTINGS, max_examples=150)
def test_a_run_continues_on_any_placement_drawn_anew(model, one, other, at, more):
    check_resumed(model, one, other, at, at + more)
