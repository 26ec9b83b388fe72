"""State of a `call` may be integers and booleans, with initializers that fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from placer.compiler.driver import compile
from placer.errors import PlacerError
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

MODULE = """\
def count(params, state, x, *, rng, training):
    new = {"steps": state["steps"] + 1, "seen": state["seen"] | (x.max(0) > 0)}
    return x * (state["steps"] - 6), new
"""
SPEC = """\
name: counted
nodes: {worker: {count: 1}}
inputs: {x: "float32[batch, 2]"}
data:
  train: {source: "npz:rows.npz", batch: 4}
graph:
  - {name: w, op: parameter, shape: [2], init: zeros}
  - {name: h, op: add, in: [x, w]}
  - name: c
    op: call
    fn: "counting:count"
    in: h
    out: "float32[batch, 2]"
    state:
      steps: {shape: [], init: {constant: 7}, dtype: int32}
      seen: {shape: [2], init: zeros, dtype: bool}
  - {name: loss, op: reduce_mean, in: c}
train:
  minimize: loss
  epochs: 1
  optimizer: {op: sgd, learning_rate: 0.001}
"""


def write(folder: Path, text: str) -> Path:
    x = np.ones((8, 2), np.float32) * np.array([1, -1], np.float32)
    np.savez(folder / "rows.npz", x=x)
    (folder / "counting.py").write_text(MODULE)
    (folder / "model.yaml").write_text(text)
    return folder / "model.yaml"


def test_a_call_counts_its_steps(tmp_path: Path) -> None:
    compile(write(tmp_path, SPEC), tmp_path / "build")
    saved = tmp_path / "saved.safetensors"
    options = Options(steps=2, deadline=300.0, save_params=saved)
    run_in_threads(tmp_path / "build", options)
    params = load_file(saved)
    assert params["c.steps"] == np.array(9, np.int32)
    assert params["c.steps"].dtype == np.int32
    np.testing.assert_array_equal(params["c.seen"], [True, False])


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        (
            "{constant: 7}, dtype: int32",
            "normal, dtype: int32",
            "parameter 'c.steps': 'normal' gives no value of int32",
            "a whole N from -2147483648 to 2147483647",
        ),
        (
            "zeros, dtype: bool",
            "{constant: 0.5}, dtype: bool",
            "parameter 'c.seen': '0.5' gives no value of bool",
            "a whole N from 0 to 1",
        ),
        (
            "{constant: 7}, dtype: int32",
            "{constant: 300}, dtype: uint8",
            "parameter 'c.steps': '300' gives no value of uint8",
            "a whole N from 0 to 255",
        ),
        (
            "dtype: int32",
            "dtype: int64",
            "parameter 'c.steps' is int64, but the model is float32",
            "write precision: float64 at the top of the spec, or int32 here",
        ),
    ],
)
def test_an_initial_value_must_fit_the_integers(
    old: str, new: str, message: str, hint: str, tmp_path: Path
) -> None:
    with pytest.raises(PlacerError) as caught:
        compile(write(tmp_path, SPEC.replace(old, new)), tmp_path / "build")
    assert message in str(caught.value)
    assert hint in str(caught.value.hint)
