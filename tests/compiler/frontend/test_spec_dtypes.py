"""The dtypes of inputs in the graph, and how they are reported."""

import re
from pathlib import Path

import numpy as np
import pytest

from placer import SpecErrors, compile, launch
from placer.compiler.frontend import load_text
from placer.errors import SpecError

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


def test_a_64_bit_input_is_narrowed_and_the_plan_reports_it(tmp_path):
    model = load_text(SPEC, "rows.yaml", tmp_path)
    assert str(model.inputs["ids"]) == "int32[batch]"
    plan = compile(model, tmp_path / "build")
    assert any(c.what == "input ids as int32[batch]" for c in plan.choices)


def test_a_64_bit_input_keeps_its_bits_with_precision_float64(tmp_path):
    model = load_text("precision: float64\n" + SPEC, "rows.yaml", tmp_path)
    assert str(model.inputs["ids"]) == "int64[batch]"
    assert model.narrowed_inputs == ()


def test_a_float64_input_needs_precision_float64():
    text = SPEC.replace("y: float32", "y: float64")
    with pytest.raises((SpecError, SpecErrors)) as caught:
        load_text(text, "rows.yaml", Path())
    assert str(caught.value) == (
        "rows.yaml:5:6: input 'y' is float64, but the precision is float32\n"
        "  5 |   y: float64[batch, 4]\n"
        "    |      ^^^^^^^^^^^^^^^^^\n"
        "  hint: declare it float32[batch, 4], or write precision: float64"
    )


def test_an_optimizer_without_a_place_is_reported(tmp_path):
    plan = compile(load_text(SPEC, "rows.yaml", tmp_path), tmp_path / "build")
    (choice,) = [c for c in plan.choices if c.what.startswith("emb.table.new")]
    assert choice.what == "emb.table.new (sgd) at /node:worker/cpu"
    assert choice.why.startswith("it has no place, and the cluster has no servers")


TWO_DTYPES = """\
name: two
nodes: {worker: {count: 2}, ps: {count: 2}}
inputs:
  x: float32[batch, 4]
data:
  train: {source: "npz:rows.npz", batch: 8}
graph:
  - {name: narrow, op: cast, in: x, dtype: DTYPE}
  - {name: first, op: fc, in: narrow, size: 4}
  - {name: back, op: cast, in: first, dtype: float32}
  - {name: second, op: fc, in: back, size: 4}
  - {name: loss, op: mean_squared_error, in: [second, x]}
train:
  minimize: loss
  CLIP
  optimizer: {op: RULE, learning_rate: 0.1}
"""


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("rule", ["sgd", "lamb"])
def test_parameters_of_two_float_dtypes_are_clipped_together(tmp_path, dtype, rule):
    x = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=x)
    text = TWO_DTYPES.replace("DTYPE", dtype).replace("RULE", rule)
    text = text.replace("CLIP", "clip: {global_norm: 1.0}")
    compile(load_text(text, "two.yaml", tmp_path), tmp_path / "build")
    graph = (tmp_path / "build" / "graph.txt").read_text()
    squares = [line for line in graph.splitlines() if "= sum_of_squares(" in line]
    assert squares
    assert all(": float32[]" in line for line in squares)
    result = launch(tmp_path / "build", in_process=True)
    assert np.isfinite(result.metrics["loss"])


@pytest.mark.parametrize(
    "clip", ["clip: {global_norm: 1.0}", "epochs: 1"], ids=["all", "one group"]
)
def test_a_layer_may_have_the_name_of_the_clip_op(tmp_path, clip):
    text = TWO_DTYPES.replace("DTYPE", "float32").replace("op: RULE", "op: sgd")
    name = "clip" if "global_norm" in clip else "clip0"
    layer = f"{{name: {name}, op: layer_norm, in: back}}"
    text = text.replace(
        "  - {name: second, op: fc, in: back",
        f"  - {layer}\n  - {{name: second, op: fc, in: {name}",
    )
    text = text.replace("CLIP", clip)
    if name == "clip0":
        text = text.replace("op: sgd,", "op: sgd, clip: {global_norm: 1.0},")
    plan = compile(load_text(text, "two.yaml", tmp_path), tmp_path / "build")
    assert f"{name}.scale" in {parameter.name for parameter in plan.parameters}
    assert f"%{name}_2.scale" in (tmp_path / "build" / "graph.txt").read_text()


FLOATS_NEEDED = """\
nodes: {worker: {count: 1}}
inputs: {x: "float32[batch, 2]", y: "float32[batch, 1]"}
data: {train: {source: "npz:rows.npz", batch: 4}}
graph:
  - {name: p, op: fc, in: x, size: 1}
  - {name: loss, op: mean_squared_error, in: [p, y]}
train: {minimize: loss, optimizer: {op: sgd, learning_rate: 0.1}}
precision: PRECISION
"""


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("dtype", ["int64", "uint64", "uint8"])
@pytest.mark.parametrize(("name", "shape"), [("x", "[batch, 2]"), ("y", "[batch, 1]")])
def test_an_integer_input_of_an_op_of_floats(precision, dtype, name, shape, tmp_path):
    good = FLOATS_NEEDED.replace("PRECISION", precision)
    bad = good.replace(f'{name}: "float32', f'{name}: "{dtype}')
    with pytest.raises(SpecError) as caught:
        load_text(bad, "model.yaml", tmp_path)
    assert caught.value.hint == (
        f"declare the input '{name}' {precision}{shape} instead of {dtype}{shape},"
        f" or convert it with the op cast, dtype: {precision}"
    )
    # Both ways of the hint work.
    load_text(bad.replace(dtype, precision), "model.yaml", tmp_path)
    cast = f"graph:\n  - {{name: c, op: cast, in: {name}, dtype: {precision}}}"
    used = bad.replace("graph:", cast).replace(
        "in: x, s", "in: c, s" if name == "x" else "in: x, s"
    )
    load_text(
        used.replace("[p, y]", "[p, c]" if name == "y" else "[p, y]"),
        "model.yaml",
        tmp_path,
    )


ONE_DTYPE = """\
nodes: {worker: {count: 1}}
inputs:
  x: "float32[batch, 2]"
  n: "int32[batch, 2]"
  h: "bfloat16[batch, 2]"
  f: "float32[batch]"
data: {train: {source: "npz:rows.npz", batch: 4}}
graph:
  - {name: p, op: fc, in: x, size: 2}
  - {name: i, op: cast, in: p, dtype: int32}
  - {name: q, OP}
  - {name: loss, op: mean_squared_error, in: [p, x]}
train: {minimize: loss, optimizer: {op: sgd, learning_rate: 0.1}}
"""


@pytest.mark.parametrize(
    ("op", "name", "dtype"),
    [
        ("op: sub, in: [x, n]", "n", "float32"),
        ("op: sub, in: [n, p]", "n", "float32"),
        ("op: mul, in: [x, h]", "h", "float32"),
        ("op: sub, in: [x, i]", "i", "float32"),
        ("op: greater, in: [i, x]", "i", "float32"),
        ("op: where, in: [n, x, h]", "h", "float32"),
        ("op: concat, in: [x, n], axis: 1", "n", "float32"),
        ("op: accuracy, in: [p, f]", "f", "int32"),
        ("op: softmax_cross_entropy, in: [p, f]", "f", "int32"),
    ],
)
def test_operands_of_several_dtypes(op, name, dtype, tmp_path):
    bad = ONE_DTYPE.replace("OP", op)
    with pytest.raises(SpecError) as caught:
        load_text(bad, "model.yaml", tmp_path)
    hint = str(caught.value.hint)
    assert hint.endswith(f" with the op cast, dtype: {dtype}")
    # Both ways of the hint work, unless the operand is no input.
    used = re.sub(rf"\b{name}\b(?=[],])", "c", op)
    cast = f"- {{name: c, op: cast, in: {name}, dtype: {dtype}}}\n  - {{name: q,"
    load_text(
        bad.replace(op, used).replace("- {name: q,", cast), "model.yaml", tmp_path
    )
    if name == "i":
        assert hint.startswith("convert 'i' with")
        return
    form = rf"declare the input '{name}' (.*) instead of (.*), or convert it with .*"
    found = re.fullmatch(form, hint)
    assert found is not None
    declared, written = found.groups()
    good = bad.replace(f'{name}: "{written}"', f'{name}: "{declared}"')
    assert good != bad
    load_text(good, "model.yaml", tmp_path)
