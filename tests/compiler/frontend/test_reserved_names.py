"""Modules, parameters, metrics and ops with names that node programs use themselves."""

import re

import numpy as np
import pytest

import placer

FUNCTION = """
import jax.numpy as jnp


def f(params, state, x, *, rng, training):
    (w,) = params.values()
    return jnp.tanh(x @ w), state
"""

SPEC = """
name: taken
nodes:
  worker: {count: 1}
inputs:
  x: float32[batch, 4]
  label: int32[batch]
data:
  train: {source: "npz:rows.npz", batch: 8, remainder: REMAINDER}
graph:
  - {name: c, op: call, in: x, fn: "MODULE:f", params: {KEY: {shape: [4, 3],
     init: xavier_uniform}}, out: "float32[batch, 3]"}
  - {name: LOSS, op: softmax_cross_entropy, in: [c, label], reduce: REDUCE}
train:
  minimize: LOSS
  optimizer: {op: sgd, learning_rate: 0.1}
"""


def run(
    folder, module="blocks", key="w", loss="loss", *, remainder="drop", reduce="mean"
) -> tuple[float, str]:
    """Train on batches of 8, 8 and 4 rows; return the last loss and the program."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 4)).astype(np.float32)
    np.savez(folder / "rows.npz", x=x, label=np.arange(20, dtype=np.int32) % 3)
    (folder / f"{module}.py").write_text(FUNCTION)
    words = {"MODULE": module, "KEY": key, "LOSS": loss}
    words |= {"REMAINDER": remainder, "REDUCE": reduce}
    text = SPEC
    for word, value in words.items():
        text = text.replace(word, value)
    (folder / "taken.yaml").write_text(text)
    placer.compile(folder / "taken.yaml", folder / "build")
    result = placer.launch(folder / "build", in_process=True)
    program = (folder / "build" / "worker-0" / "program.py").read_text()
    return result.metrics[loss], program


@pytest.mark.parametrize("name", ["ops", "runtime", "step", "count", "node", "list"])
def test_a_module_is_imported_by_another_name_if_its_own_is_taken(tmp_path, name):
    loss, program = run(tmp_path, name)
    assert np.isfinite(loss)
    assert f"\nimport {name} as {name}_2\n" in program
    assert re.search(rf"= ops\.call\.bind\(\s*{name}_2\.f,", program)
    assert "\nfrom placer import ops\n" in program


def test_a_module_keeps_its_name_if_that_is_free(tmp_path):
    _, program = run(tmp_path, "blocks")
    assert "\nimport blocks\n" in program


def test_a_value_with_the_name_of_a_module_is_renamed(tmp_path):
    _, program = run(tmp_path, "x")
    assert "\nimport x\n" in program
    assert re.search(r"= ops\.call\.bind\(\s*x\.f,", program)
    assert 'node.read("x", ' in program
    assert "x_2" in program


@pytest.mark.parametrize("named", [{"module": "count"}, {"key": "count"}])
def test_the_number_of_rows_is_passed_only_where_it_is_used(tmp_path, named):
    _, program = run(tmp_path, **named, remainder="keep", reduce="sum")
    assert "count=node.count" not in program
    assert "functools" not in program


def test_the_number_of_rows_of_a_short_batch_is_passed(tmp_path):
    loss, program = run(tmp_path, "count", "count", remainder="keep")
    assert np.isfinite(loss)
    assert "count=node.count" in program
    assert '@functools.partial(jax.jit, static_argnames="count")' in program


@pytest.mark.parametrize("metric", ["self", "metrics", "node"])
def test_a_metric_may_have_the_name_of_an_argument(tmp_path, metric):
    loss, _ = run(tmp_path, loss=metric)
    assert np.isfinite(loss)


@pytest.mark.parametrize("key", ["scale", "new", "clip", "square", "ratio", "sum"])
def test_a_parameter_may_have_the_name_of_a_suffix_that_passes_add(tmp_path, key):
    loss, _ = run(tmp_path, key=key)
    assert np.isfinite(loss)
