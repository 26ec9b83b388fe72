"""Ops of kind `metric`: a function of the user that returns numbers for each row."""

import textwrap
from pathlib import Path

import pytest

import placer
from placer.compiler.frontend import load_text
from placer.compiler.frontend.python.read import read_model
from placer.errors import SpecError

FUNCTIONS = """
import jax
import jax.numpy as jnp


def margin(logits, label):
    rows = jnp.arange(logits.shape[0])
    return logits[rows, label] - logits.mean(-1)


def right(logits, label):
    return logits.argmax(-1) == label


def weighted(logits, label):
    weight = jnp.where(label > 1, 2.0, 0.5)
    return weight * right(logits, label), weight


def matrix(logits, label):
    return logits


def scalar(logits, label):
    return logits.mean()


def three(logits, label):
    return label, label, label


def words(logits, label):
    return "right"


def centred(logits, label):
    return logits[:, 0] - logits[:, 0].mean()


def odd(logits, label):
    return logits[:, 0] * (2.0 if logits.shape[0] == 8 else 1.0)


def raises(logits, label):
    raise ValueError("no such label")


NUMBER = 3
"""
SPEC = """
name: measured
nodes:
  worker: {count: 2}
inputs:
  x: float32[batch, 4]
  label: int32[batch]
data:
  train: {source: "npz:rows.npz", batch: 8}
graph:
  - {name: logits, op: fc, in: x, size: 4}
  - {name: mine, op: metric, METRIC}
  - {name: loss, op: softmax_cross_entropy, in: [logits, label]}
train:
  minimize: loss
  metrics: [loss, mine]
  optimizer: {op: sgd, learning_rate: 0.1}
"""


def compile_metric(folder: Path, metric: str) -> Path:
    (folder / "measures.py").write_text(textwrap.dedent(FUNCTIONS))
    (folder / "measured.yaml").write_text(SPEC.replace("METRIC", metric))
    placer.compile(folder / "measured.yaml", folder / "build")
    return folder / "build"


@pytest.mark.parametrize("function", ["margin", "right", "weighted"])
def test_the_node_program_calls_the_function_by_its_name(
    tmp_path: Path, function: str
) -> None:
    build = compile_metric(tmp_path, f'fn: "measures:{function}", in: [logits, label]')
    program = (build / "worker" / "program.py").read_text()
    assert "\nimport measures\n" in program
    assert f"\n{function} = ops.metric.bind(measures.{function})\n" in program
    assert f"mine = {function}(logits, label)\n" in program
    assert (build / "measures.py").read_text() == FUNCTIONS


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            "matrix",
            "measures:matrix returns float32[14, 4] for 14 rows, but a metric needs a"
            " number for each row",
        ),
        ("scalar", "measures:scalar returns float32[] for 14 rows, but a metric needs"),
        ("three", "measures:three returns (int32[14], int32[14], int32[14]) for 14"),
        ("words", "measures:words returns str for 14 rows, but a metric needs"),
        (
            "centred",
            "measures:centred must work row by row, but returns different results for"
            " half of the rows",
        ),
        ("odd", "measures:odd works row by row for 14 and 57 rows, but behaves"),
        (
            "raises",
            "measures:raises raised ValueError: no such label (measures.py:45)",
        ),
        ("missing", "measures.py has no function 'missing'"),
        ("NUMBER", "measures.py has no function 'NUMBER'"),
    ],
)
def test_mistakes_of_the_function_are_reported_at_the_op(
    tmp_path: Path, function: str, message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        compile_metric(tmp_path, f'fn: "measures:{function}", in: [logits, label]')
    text = str(caught.value)
    assert message in text
    assert "measured.yaml:12:12: op 'mine' (metric): " in text


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ('fn: "measures:margin"', "metric needs at least 1 operand"),
        ("in: [logits, label]", "'fn' is missing in op 'mine' (metric)"),
        ("fn: measures, in: [logits, label]", "'measures' is not of the form"),
        ('fn: "nowhere:f", in: [logits, label]', "nowhere.py"),
        (
            'fn: "measures:margin", in: [loss, label]',
            "'loss' is defined later, on line 13",
        ),
    ],
)
def test_mistakes_of_the_op_are_reported_in_the_spec(
    tmp_path: Path, metric: str, message: str
) -> None:
    (tmp_path / "measures.py").write_text(FUNCTIONS)
    with pytest.raises(SpecError) as caught:
        load_text(SPEC.replace("METRIC", metric), "measured.yaml", tmp_path)
    assert message in str(caught.value)
    assert "measured.yaml:12:" in str(caught.value)


def test_code_is_not_run_with_no_code(tmp_path: Path) -> None:
    (tmp_path / "measures.py").write_text("raise SystemExit(3)")
    spec = tmp_path / "measured.yaml"
    spec.write_text(SPEC.replace("METRIC", 'fn: "measures:f", in: [logits, label]'))
    with pytest.raises(SpecError, match="compiling op 'mine' needs to run measures:f"):
        placer.compile(spec, tmp_path / "build", code=False)


PYTHON = """
import measures

from placer import Program, append_backward, layers, optimizer


def text():
    return model("measures:margin")


def function():
    return model(measures.margin)


def model(fn):
    data = {"train": {"source": "npz:rows.npz", "batch": 8}}
    nodes = {"worker": {"count": 2}}
    with Program(name="measured", nodes=nodes, data=data, metrics=["loss", "mine"]) as p:
        x = layers.data("x", "float32[batch, 4]")
        label = layers.data("label", "int32[batch]")
        logits = layers.fc(x, 4, name="logits")
        layers.metric(fn, logits, label, name="mine")
        loss = layers.softmax_cross_entropy(logits, label, name="loss")
        append_backward(loss)
        optimizer.SGD(0.1).minimize(loss)
    return p
"""


def test_a_program_in_python_gives_the_same_spec(tmp_path: Path) -> None:
    (tmp_path / "measures.py").write_text(FUNCTIONS)
    (tmp_path / "model.py").write_text(PYTHON)
    spec = SPEC.replace("METRIC", 'fn: "measures:margin", in: [logits, label]')
    (tmp_path / "measured.yaml").write_text(spec)
    for fn in ("text", "function"):
        model = read_model(tmp_path / f"model.py:{fn}")
        wanted = read_model(tmp_path / "measured.yaml")
        found = next(op for op in model.graph.ops if op.kind == "metric")
        expected = next(op for op in wanted.graph.ops if op.kind == "metric")
        assert (found.operands, found.attrs) == (expected.operands, expected.attrs)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("layers.metric(3, logits)", "layers.metric needs a function, not int"),
        ("layers.metric(lambda x: x, logits)", "<lambda>' cannot be imported from"),
        ("layers.metric('measures:margin', 3)", "must be values of the program, not"),
        (
            "layers.metric('measures:margin')",
            "needs the values to pass to its function",
        ),
    ],
)
def test_mistakes_in_python_are_reported_at_the_call(
    tmp_path: Path, metric: str, message: str
) -> None:
    (tmp_path / "measures.py").write_text(FUNCTIONS)
    text = PYTHON.replace("layers.metric(fn, logits, label", "mine(logits")
    text += f"\n\ndef mine(logits, name):\n    return {metric}\n"
    (tmp_path / "model.py").write_text(text)
    with pytest.raises(SpecError) as caught:
        read_model(tmp_path / "model.py:text")
    assert message in str(caught.value)
    assert "model.py:" in str(caught.value)
