"""Seed generators of Keras are streams: each step and each row has its own key."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import placer
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

pytestmark = pytest.mark.usefixtures("in_float64")
ROWS, WIDTH, SEED = 6, 16, 5
MODEL = f"""
import sys
import types

import jax
import numpy as np

import placer
from placer import Program, layers, optimizer, place_guard


class Variable:
    # Has the attributes of a variable of Keras that placer reads.
    def __init__(self, path, value, trainable=True):
        self.path, self.value, self.trainable = path, value, trainable
        self.shape, self.dtype = value.shape, str(value.dtype)

    def __array__(self, dtype=None, copy=None):
        return self.value


sys.modules["keras"] = types.SimpleNamespace(
    Variable=Variable, Model=type(None),
    config=types.SimpleNamespace(backend=lambda: "jax"),
)


def variables():
    return [Variable(f"layer/{{name}}", np.ones(({ROWS}, {WIDTH}))) for name in "wv"]


def state():
    seeds = np.random.randint(0, 9, (2, 2), np.uint32)  # others in each process
    return [
        Variable("drop/seed_generator_state", seeds[0], trainable=False),
        Variable("norm/count", np.zeros((), np.int32), trainable=False),
        Variable("drop_1/seed_generator_state", seeds[1], trainable=False),
    ]


def apply(variables, state, x, training):
    first, count, second = state
    if not training:
        return sum(x @ w for w in variables).sum(-1), state
    y = 0
    for w, seed in zip(variables, (first, second)):
        y += (jax.random.bernoulli(seed, 0.75, (len(x), {WIDTH})) * (x @ w)).sum(-1)
    one = np.array([0, 1], np.uint32)
    return y, [first + one, count + 1, second + one]


def build():
    program = Program(
        name="seeds",
        precision="float64",
        seed={SEED},
        nodes={{"worker": {{"count": 2}}}},
        data={{"train": {{"source": "npz:rows.npz", "batch": {ROWS}}}}},
        epochs=2,
    )
    with program, place_guard("/node:worker"):
        x = layers.data("x", "float32[batch, {ROWS}]")
        y = placer.trace(apply, variables, state, x, name="net", state="state")
        optimizer.SGD(1.0).minimize(layers.mean(y))
    return program
"""


def test_a_seed_generator_has_a_key_for_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "keras", None)  # what the file sets is undone
    (tmp_path / "seeds.py").write_text(MODEL)
    np.savez(tmp_path / "rows.npz", x=np.eye(ROWS))
    placer.compile(f"{tmp_path / 'seeds.py'}:build", tmp_path / "build")
    before = {name: np.ones((ROWS, WIDTH)) for name in "wv"}
    for step in (1, 2):
        saved = tmp_path / f"{step}.safetensors"
        options = Options(steps=step, save_params=saved, deadline=300.0)
        run_in_threads(tmp_path / "build", options)
        after = load_file(saved)
        assert {*after} == {"net.layer_w", "net.layer_v", "net.norm_count"}
        assert after["net.norm_count"] == step
        for number, name in enumerate("wv"):
            key = jax.random.fold_in(placer.step_key(SEED, "net", step), number)
            rows = [jax.random.fold_in(key, row) for row in range(ROWS)]
            masks = [jax.random.bernoulli(each, 0.75, (WIDTH,)) for each in rows]
            change = ROWS * (before[name] - after[f"net.layer_{name}"])
            np.testing.assert_allclose(change, np.stack(masks), atol=1e-9)
            before[name] = after[f"net.layer_{name}"]
