"""A run whose labels are outside the classes ends before its first step."""

import numpy as np
import pytest

import placer
from placer.errors import DataError

SPEC = """\
nodes: {worker: {count: 2}}
inputs: {x: "float32[batch, 4]", label: "int32[batch]"}
data: {train: {source: "sklearn:iris", batch: 30}}
graph:
  - {name: scores, op: fc, in: x, size: 2, place: /node:worker:0}
  - {name: loss, op: softmax_cross_entropy, in: [scores, label], place: /node:worker:1}
train: {minimize: loss, optimizer: {op: sgd, learning_rate: 0.1}}
"""


def test_a_label_outside_the_classes_raises_before_the_first_step(tmp_path):
    (tmp_path / "model.yaml").write_text(SPEC)
    placer.compile(tmp_path / "model.yaml", tmp_path / "build")
    with pytest.raises(DataError) as error:
        placer.launch(tmp_path / "build", in_process=True)
    assert str(error.value) == (
        "model.yaml:2:42: sklearn:iris: column 'target', row 100: 2 is outside 0-1\n"
        "  hint: input 'label' goes to op 'loss' (softmax_cross_entropy), which takes"
        " 0 to 1; for more classes, raise the size of op 'scores', which is 2"
    )


BINARY = """\
nodes: {worker: {count: 2}}
inputs: {x: "float32[batch, 2]", label: "TYPE[batch]"}
data: {train: {source: "npz:rows.npz", batch: 2}}
graph:
  - {name: scores, op: fc, in: x, size: 1, place: /node:worker:0}
  - {name: logit, op: reshape, in: scores, shape: [batch], place: /node:worker:0}
  - {name: loss, op: sigmoid_cross_entropy, in: [logit, label], place: /node:worker:1}
train: {minimize: loss, optimizer: {op: sgd, learning_rate: 0.1}}
"""


@pytest.mark.parametrize(
    ("dtype", "value", "text"),
    [
        ("int32", 2, "2"),
        ("int32", -1, "-1"),
        ("float32", 1.5, "1.5"),
        ("float32", np.nan, "nan"),
    ],
)
def test_a_binary_label_outside_0_to_1_raises(tmp_path, dtype, value, text):
    """The loss would be negative, and fall without a bound."""
    labels = np.array([0, 1, value, 1], dtype)
    np.savez(tmp_path / "rows.npz", x=np.ones((4, 2), np.float32), label=labels)
    (tmp_path / "model.yaml").write_text(BINARY.replace("TYPE", dtype))
    placer.compile(tmp_path / "model.yaml", tmp_path / "build")
    with pytest.raises(DataError) as error:
        placer.launch(tmp_path / "build", in_process=True)
    assert f"row 2: {text} is outside 0-1" in str(error.value)
    assert "op 'loss' (sigmoid_cross_entropy)" in str(error.value)


def test_labels_between_0_and_1_are_probabilities(tmp_path):
    labels = np.array([0, 0.25, 1, 0.5], np.float32)
    np.savez(tmp_path / "rows.npz", x=np.ones((4, 2), np.float32), label=labels)
    (tmp_path / "model.yaml").write_text(BINARY.replace("TYPE", "float32"))
    placer.compile(tmp_path / "model.yaml", tmp_path / "build")
    assert placer.launch(tmp_path / "build", in_process=True).metrics["loss"] > 0
