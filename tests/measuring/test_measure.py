"""A measurement on this machine: what it times, and what it says if it fails."""

from pathlib import Path

import numpy as np
import pytest

from placer.compiler.driver import lower_model
from placer.compiler.frontend import load_text
from placer.compiler.placing.costs import parse_costs, write_costs
from placer.compiler.placing.step_items import step_items
from placer.compiler.schedule.schedule import make_schedule
from placer.compiler.schedule.units import LoweredGraph
from placer.errors import PlacerError
from placer.measuring.measure import measure

SPEC = """\
nodes: {worker: {count: 2}}
inputs: {x: "float32[batch, 8]", label: "int32[batch]"}
data: {train: {source: "npz:rows.npz", batch: 8}}
graph:
  - {name: h, op: fc, in: x, size: 8, activation: relu, place: /node:worker:0}
  - {name: y, op: fc, in: h, size: 4, place: /node:worker:1}
  - {name: loss, op: softmax_cross_entropy, in: [y, label], place: /node:worker:1}
train:
  minimize: loss
  microbatches: 2
  optimizer: {op: sgd, learning_rate: 0.1}
"""


def model_in(folder):
    return load_text(SPEC, "small.yaml", Path(folder))


@pytest.mark.slow
def test_a_measurement_has_all_that_a_prediction_needs(tmp_path):
    rows = {"x": np.zeros((64, 8), np.float32), "label": np.zeros(64, np.int32)}
    np.savez(tmp_path / "rows.npz", **rows)
    model = model_in(tmp_path)
    costs = measure(model)
    step = lower_model(model).step
    schedule = make_schedule(step, "1f1b")
    items = step_items(LoweredGraph(step, step.batch, "step"), schedule, costs)
    assert items.missing == ()
    fallback = {"update", "copy to a device", "call on another device", "rows by key"}
    assert {*costs.missing_overheads} == fallback | {"record"} - {*costs.entries}
    assert parse_costs(write_costs(costs), "costs.json").entries == costs.entries


def test_a_measurement_without_rows_names_the_missing_file(tmp_path):
    with pytest.raises(PlacerError, match=r"measurement has failed.*rows\.npz"):
        measure(model_in(tmp_path))
