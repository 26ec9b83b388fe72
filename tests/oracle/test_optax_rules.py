"""Optax optimizers give the same on every placement as plain JAX with optax.

The model is an autoencoder, which uses its matrix twice. On two servers, all parameters
that may be cut are cut.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import yaml
from safetensors.numpy import load_file, save_file
from support import optax_rules
from support.marks import slow_but

import placer
from placer.plan.plan import Plan, read_plan
from placer.plan.settings.training.schedules import read_rate
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads
from placer.tables.learning_rate import build_schedule

pytestmark = pytest.mark.usefixtures("in_float64")

SHAPES = {"h.w": (256, 130), "h.b": (130,), "o.b": (256,), "p.w": (130, 3), "p.b": (3,)}
BATCH, STEPS = 6, 5
RATE = {"exponential": {"init": 0.02, "rate": 0.8, "steps": 2}}
TWO_SERVERS = {"worker": {"count": 2}, "ps": {"count": 2}}
PLACEMENTS: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one server": (
        {"worker": {"count": 2}, "ps": {"count": 1}},
        {"place": "/node:ps"},
    ),
    "two servers": (TWO_SERVERS, {"place": "/node:ps"}),
    "all-reduce": ({"worker": {"count": 2}}, {"place": "/node:worker"}),
    "shard_state": (
        {"worker": {"count": 2}},
        {"place": "/node:worker", "shard_state": True},
    ),
    "async": (
        {"worker": {"count": 1}, "ps": {"count": 2}},
        {"place": "/node:ps", "update": "half_async"},
    ),
    "geo": (
        {"worker": {"count": 1}, "ps": {"count": 2}},
        {"place": "/node:ps", "update": {"geo": {"every": 1}}},
    ),
}
WHOLE: Mapping[str, set[str]] = {
    "adabelief": set(),
    "adan": set(),
    "amsgrad": set(),
    "radam": set(),
    "yogi": set(),
    "decayed_matrices": set(),
    "decayed_by_name": set(),
    "by_label": set(),
    "clipped": set(),
    "in_turns": set(),
    "schedule_free": set(),
    "adafactor": {*SHAPES},
    "novograd": {*SHAPES},
    "sm3": {"h.w", "p.w"},
    "muon": {"h.w", "p.w"},
    "noisy": {*SHAPES},
}
"""The optimizers, each with the parameters that two servers cannot cut."""
CONFIGS = {"decayed_matrices": {"weight_decay": 0.5}}
"""The arguments of the functions, besides the learning rate."""
FLAT_DIFFERS = {"decayed_matrices": {"h.w"}}
"""Parameters that servers cut into rows, but that cannot be divided into flat ranges."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path: Path = tmp_path_factory.mktemp("rules")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH * STEPS, 256))
    np.savez(path / "rows.npz", x=x, y=rng.normal(size=(len(x), 3)))
    save_file(
        {name: rng.normal(size=shape) / 8 for name, shape in SHAPES.items()},
        path / "start.safetensors",
    )
    text = inspect.getsource(optax_rules)
    (path / "optimizers.py").write_text(text)
    return path


def compile_with(folder: Path, optimizer: dict[str, Any], nodes: Any) -> Path:
    layers = [
        {"name": "h", "op": "fc", "in": "x", "size": 130},
        {"name": "a", "op": "tanh", "in": "h"},
        {
            "name": "o",
            "op": "fc",
            "in": "a",
            "size": 256,
            "params": {"w": "h.w"},
            "transpose_w": True,
        },
        {"name": "p", "op": "fc", "in": "a", "size": 3},
        {"name": "again", "op": "mean_squared_error", "in": ["o", "x"]},
        {"name": "error", "op": "mean_squared_error", "in": ["p", "y"]},
        {"name": "loss", "op": "add", "in": ["again", "error"]},
    ]
    spec = {
        "name": "rules",
        "precision": "float64",
        "nodes": nodes,
        "inputs": {"x": "float64[batch, 256]", "y": "float64[batch, 3]"},
        "data": {"train": {"source": "npz:rows.npz", "batch": BATCH}},
        "graph": [{"place": "/node:worker", "ops": layers}],
        "train": {
            "minimize": "loss",
            "epochs": 1,
            "slicing": {"min_block": 2},
            "optimizer": optimizer,
        },
    }
    number = len([*folder.glob("*.yaml")])
    text = folder / f"{number}.yaml"
    text.write_text(yaml.safe_dump(spec, sort_keys=False))
    placer.compile(text, folder / f"build{number}")
    return folder / f"build{number}"


def train(folder: Path, build: Path) -> tuple[list[float], dict[str, np.ndarray]]:
    saved = build.parent / f"{build.name}.safetensors"
    history = build.parent / f"{build.name}.jsonl"
    run_in_threads(
        build,
        Options(
            init_params=folder / "start.safetensors", save_params=saved, history=history
        ),
    )
    lines = map(json.loads, history.read_text().splitlines())
    return [line["metrics"]["loss"] for line in lines], load_file(saved)


def loss_of(params: dict[str, Any], x: Any, y: Any) -> Any:
    a = jnp.tanh(x @ params["h.w"] + params["h.b"])
    again = a @ params["h.w"].T + params["o.b"]
    predicted = a @ params["p.w"] + params["p.b"]
    return jnp.mean((again - x) ** 2) + jnp.mean((predicted - y) ** 2)


def train_plainly(folder: Path, rule: str) -> tuple[list[float], dict[str, Any]]:
    """Train by plain JAX and optax, in one process."""
    make = partial(getattr(optax_rules, rule), **CONFIGS.get(rule, {}))
    rates = build_schedule(read_rate(RATE))
    takes_rate = "learning_rate" in inspect.signature(make).parameters
    rows = np.load(folder / "rows.npz")
    start = load_file(folder / "start.safetensors")
    params = {name: jnp.asarray(start[name]) for name in SHAPES}

    def made(number: int) -> Any:
        return make(rates(number)) if takes_rate else make()

    state, losses = made(0).init(params), []
    for number in range(STEPS):
        part = slice(number * BATCH, (number + 1) * BATCH)
        loss, gradients = jax.value_and_grad(loss_of)(
            params, rows["x"][part], rows["y"][part]
        )
        updates, state = made(number).update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        losses.append(float(loss))
    return losses, params


def entry(rule: str, **places: Any) -> dict[str, Any]:
    parameters = inspect.signature(getattr(optax_rules, rule)).parameters
    given = {"learning_rate": RATE} if "learning_rate" in parameters else {}
    given |= {"with": CONFIGS[rule]} if rule in CONFIGS else {}
    return {"op": "optax", "fn": f"optimizers:{rule}", **given, **places}


def cut_parameters(plan: Plan) -> set[str]:
    return {
        block.parameter
        for node in plan.nodes
        for table in node.tables
        for block in table.blocks
        if 0 < block.numel < np.prod(SHAPES[block.parameter])
    }


FAST = [
    ("decayed_matrices", "two servers"),
    ("muon", "shard_state"),
]
EVERY = [(rule, placement) for rule in WHOLE for placement in PLACEMENTS]


@pytest.mark.parametrize(("rule", "placement"), slow_but(FAST, EVERY))
def test_a_rule_of_optax_gives_the_same_as_plain_optax(rule, placement, folder):
    nodes, places = PLACEMENTS[placement]
    build = compile_with(folder, entry(rule, **places), nodes)
    plan = read_plan(build)
    if placement in ("two servers", "async"):
        assert cut_parameters(plan) == {*SHAPES} - WHOLE[rule]
    elif placement == "shard_state":
        # The vectors are too small to be divided.
        assert cut_parameters(plan) == (
            {"h.w"} - WHOLE[rule] - FLAT_DIFFERS.get(rule, set())
        )
    losses, params = train(folder, build)
    plain_losses, plain = train_plainly(folder, rule)
    np.testing.assert_allclose(losses, plain_losses, rtol=1e-9)
    for name, values in params.items():
        np.testing.assert_allclose(values, plain[name], rtol=1e-7, atol=1e-9)


def test_servers_compensate_late_gradients(folder):
    update = {"async": {"compensate": 0.1, "max_staleness": 1}}
    nodes = {"worker": {"count": 1}, "ps": {"count": 2}}
    places = {"place": "/node:ps", "update": update}
    losses, _ = train(folder, compile_with(folder, entry("yogi", **places), nodes))
    plain_losses, _ = train_plainly(folder, "yogi")
    assert losses[0] == pytest.approx(plain_losses[0], rel=1e-9)
    assert np.isfinite(losses).all()


def test_adam_of_optax_is_adam_of_placer(folder):
    nodes, places = PLACEMENTS["two servers"]
    of_optax = train(folder, compile_with(folder, entry("adam", **places), nodes))
    own = {"op": "adam", "learning_rate": RATE, **places}
    of_placer = train(folder, compile_with(folder, own, nodes))
    np.testing.assert_allclose(of_optax[0], of_placer[0], rtol=1e-15)
    for name, values in of_placer[1].items():
        np.testing.assert_allclose(of_optax[1][name], values, rtol=0, atol=1e-15)


@pytest.mark.slow
def test_delay_compensation_corrects_the_gradients_of_an_optax_optimizer(folder):
    nodes, places = PLACEMENTS["async"]
    mode = {"async": {"max_staleness": 1, "compensate": 0.04}}
    build = compile_with(folder, entry("adan", **{**places, "update": mode}), nodes)
    losses, params = train(folder, build)
    plain_losses, _ = train_plainly(folder, "adan")
    assert losses[0] == pytest.approx(plain_losses[0], rel=1e-9)
    start = load_file(folder / "start.safetensors")
    for name, values in params.items():
        assert np.isfinite(values).all()
        assert not np.any(values == start[name])
