"""Which dtypes an input has in the graph, and what is said of it."""

from pathlib import Path

import pytest

from placer import SpecErrors, compile
from placer.errors import SpecError
from placer.spec import load_text

SPEC = """\
name: rows
nodes: {worker: {count: 2}}
inputs:
  ids: int64[batch]
  y: float32[batch, 4]
data:
  train: {source: "npz:rows.npz", batch: 8}
graph:
  - {name: emb, op: embedding, in: ids, size: [10, 4]}
  - {name: loss, op: mean_squared_error, in: [emb, y]}
train:
  minimize: loss
  epochs: 1
  optimizer: {op: sgd, learning_rate: 0.1}
"""


def test_a_64_bit_input_is_read_as_32_bits_and_the_plan_says_so(tmp_path):
    model = load_text(SPEC, "rows.yaml", tmp_path)
    assert str(model.inputs["ids"]) == "int32[batch]"
    plan = compile(model, tmp_path / "build")
    assert any(c.what == "input ids as int32[batch]" for c in plan.choices)


def test_a_64_bit_input_keeps_its_bits_with_precision_float64(tmp_path):
    model = load_text("precision: float64\n" + SPEC, "rows.yaml", tmp_path)
    assert str(model.inputs["ids"]) == "int64[batch]"
    assert model.narrowed == ()


def test_a_float64_input_needs_precision_float64():
    text = SPEC.replace("y: float32", "y: float64")
    with pytest.raises((SpecError, SpecErrors)) as caught:
        load_text(text, "rows.yaml", Path())
    assert str(caught.value) == (
        "rows.yaml:5:6: input 'y' is float64, and the precision is float32\n"
        "  5 |   y: float64[batch, 4]\n"
        "    |      ^^^^^^^^^^^^^^^^^\n"
        "  hint: declare it float32[batch, 4], or write precision: float64"
    )


def test_an_optimizer_that_nobody_placed_is_listed(tmp_path):
    plan = compile(load_text(SPEC, "rows.yaml", tmp_path), tmp_path / "build")
    (choice,) = [c for c in plan.choices if c.what.startswith("emb.table.new")]
    assert choice.what == "emb.table.new (sgd) at /node:worker/cpu"
    assert choice.why.startswith("nothing was written, and there is no server")
