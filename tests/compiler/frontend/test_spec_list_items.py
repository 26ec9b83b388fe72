"""Each item of a list is checked against the item type."""

from pathlib import Path

import pytest

from placer.compiler.frontend import load_text
from placer.errors import SpecError

SPEC = """\
nodes: {worker: {}}
inputs: {x: "float32[batch, 3]"}
data: {train: {source: "npz:rows.npz", batch: 4}}
graph:
  - {name: h, op: fc, in: x, size: 1}
  - {name: g, %s}
  - {name: loss, op: reduce_mean, in: h}
train: {minimize: loss, optimizer: {op: sgd, learning_rate: 0.1}}
"""


@pytest.mark.parametrize(
    ("op", "column", "message"),
    [
        (
            "op: reduce_sum, in: h, axis: [zero]",
            45,
            "an item of 'axis' must be a whole number, not the text 'zero'",
        ),
        (
            "op: reshape, in: h, shape: [bach, 1]",
            43,
            "an item of 'shape' must be a whole number or 'batch', not the text 'bach'",
        ),
        (
            "op: reshape, in: h, shape: [batch, 1.5]",
            50,
            "an item of 'shape' must be a whole number or 'batch', not 1.5",
        ),
        (
            "op: constant, value: 1.0, shape: [batch]",
            49,
            "an item of 'shape' must be a whole number, not the text 'batch'",
        ),
    ],
)
def test_the_wrong_item_is_reported(op, column, message):
    with pytest.raises(SpecError) as caught:
        load_text(SPEC % op, "f.yaml", Path())
    assert caught.value.message == message
    assert caught.value.span.column == column
