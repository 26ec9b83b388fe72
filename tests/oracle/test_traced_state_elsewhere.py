"""State is stored where its new value is computed: others may read it, or nothing does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file
from support.histories import read_losses
from support.imported_files import import_file

import placer
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

pytestmark = pytest.mark.usefixtures("in_float64")
MODEL = """
import numpy as np

import placer
from placer import Program, layers, optimizer, place_guard

FIRST, SECOND, OPTIMIZER = {places}


def params():
    return {{"w": np.ones((4, 2))}}


def state():
    return {{"mean": np.zeros(2), "last": np.zeros(2), "steps": np.zeros((), np.int32)}}


def apply(params, state, x, training):
    with place_guard(FIRST):
        h = x @ params["w"] - state["mean"]
    with place_guard(SECOND):
        y = (h - state["mean"]).sum(-1)
        if training:
            mean, last = h.mean(0), h.max(0)  # nothing reads the last
            mean = 0.9 * state["mean"] + 0.1 * mean
            state = {{"mean": mean, "last": last, "steps": state["steps"] + 1}}
    return y**2, state


def build():
    program = Program(
        name="elsewhere",
        precision="float64",
        nodes={{"worker": {{"count": 2}}, "ps": {{"count": 1}}}},
        data={{"train": {{"source": "npz:rows.npz", "batch": 8}}}},
        epochs=2,
        metrics=["loss"],
    )
    with program, place_guard("/node:worker/cpu"):
        x = layers.data("x", "float32[batch, 4]")
        y = placer.trace(apply, params, state, x, name="net", state="state")
        loss = layers.mean(y, name="loss")
        with place_guard(OPTIMIZER):
            optimizer.SGD(0.01).minimize(loss)
    return program
"""
PLACES = {
    "split": ("/node:worker:0", "/node:worker:1", "/node:worker:0/cpu"),
    "split, a server": ("/node:worker:1", "/node:worker:0", "/node:ps/cpu"),
    "all workers": ("", "", "/node:worker/cpu"),
}
STEPS = 4


@pytest.mark.parametrize("placement", PLACES)
def test_state_may_be_read_elsewhere_or_nowhere(placement: str, tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL.format(places=PLACES[placement]))
    x = np.random.default_rng(0).normal(size=(16, 4))
    np.savez(tmp_path / "rows.npz", x=x)
    placer.compile(f"{file}:build", tmp_path / "build")
    history, saved = tmp_path / "history.jsonl", tmp_path / "saved.safetensors"
    options = Options(steps=STEPS, history=history, save_params=saved, deadline=300.0)
    run_in_threads(tmp_path / "build", options)
    losses, params, state = train_plain(file, x)
    assert read_losses(history) == pytest.approx(losses, rel=1e-12)
    trained = load_file(saved)
    np.testing.assert_allclose(trained["net.params_w"], params["w"], rtol=1e-12)
    for name, value in state.items():
        np.testing.assert_allclose(trained[f"net.state_{name}"], value, rtol=1e-12)


def train_plain(file: Path, x: Any) -> tuple[list[float], Any, Any]:
    """Return the losses, and the final parameters and state, by plain JAX."""
    module = import_file(file)
    params, state, losses = module.params(), module.state(), []

    def loss(params: Any, state: Any, rows: Any) -> Any:
        squares, new = module.apply(params, state, rows, True)
        return squares.mean(), new

    for step in range(STEPS):
        rows = x[step % 2 * 8 :][:8]
        gradient = jax.value_and_grad(loss, has_aux=True)
        (value, state), grads = gradient(params, state, rows)
        params = jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)
        losses.append(float(value))
    return losses, params, state
