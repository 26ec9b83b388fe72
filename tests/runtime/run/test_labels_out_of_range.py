"""A run whose labels are outside the classes ends before its first step."""

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
        "sklearn:iris: column 'target', row 100: 2 is outside 0-1\n"
        "  hint: input 'label' goes to op 'loss' (softmax_cross_entropy), which takes"
        " 0 to 1"
    )
