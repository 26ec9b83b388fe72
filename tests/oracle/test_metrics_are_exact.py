"""Metrics equal those of one process, wherever their rows are computed."""

import numpy as np
import pytest
import yaml
from support.drawn.graphs import columns, initial_values
from support.marks import MAY_PAIR_ROWS, slow_but
from support.run_ways import check_same, run_build, run_plain, write_spec

from placer.compiler.driver import compile
from placer.place.types import TensorType

pytestmark = [
    pytest.mark.usefixtures("in_float64"),
    MAY_PAIR_ROWS,
]

SPEC = """
precision: float64
nodes: {worker: {count: 3}, ps: {count: 1}}
inputs:
  x: "float32[batch, 3]"
  y: "float32[batch]"
  label: "int32[batch]"
  click: "int32[batch]"
data:
  train: {source: "npz:train.npz", batch: 12, remainder: keep}
  eval: {source: "npz:eval.npz", batch: 6}
graph:
  - {name: logits, op: fc, in: x, size: 4}
  - {name: out, op: fc, in: x, size: 1}
  - {name: flat, op: flatten, in: out, axis: 0}
  - {name: classes, op: softmax_cross_entropy, in: [logits, label]}
  - {name: clicks, op: sigmoid_cross_entropy, in: [flat, click]}
  - {name: loss, op: add, in: [classes, clicks]}
"""
COUNTED = {
    "accuracy": "{op: accuracy, in: [logits, label]}",
    "top_k_accuracy": "{op: top_k_accuracy, in: [logits, label], k: 2}",
    "precision": "{op: precision, in: [flat, click], logits: true, threshold: 0.6}",
    "recall": "{op: recall, in: [logits, label], class_id: 3}",
    "f1": "{op: f1, in: [flat, click], logits: true}",
    "auc": "{op: auc, in: [flat, click], logits: true, bins: 11}",
}
SUMMED = {
    "mean_absolute_error": "{op: mean_absolute_error, in: [flat, y]}",
    "root_mean_squared_error": "{op: root_mean_squared_error, in: [flat, y]}",
    "mean": "{op: mean, in: logits}",
    "of_a_loss": "{op: mean, in: clicks}",
    "margin": "{op: metric, fn: 'called:margin', in: [logits, label]}",
    "weighted": "{op: metric, fn: 'called:weighted', in: [flat, click, label]}",
}
PLACES = ["/node:worker", "/node:worker:1", "/node:worker:0,2"]


@pytest.mark.parametrize("place", slow_but(PLACES[:1], PLACES))
def test_metrics_of_a_placement_equal_those_of_one_process(place, tmp_path):
    spec = yaml.safe_load(SPEC)
    metrics = {**COUNTED, **SUMMED}
    spec["graph"] += [
        {"name": name, **yaml.safe_load(op), "place": place}
        for name, op in metrics.items()
    ]
    spec["train"] = {
        "minimize": "loss",
        "metrics": ["loss", *metrics],
        "optimizer": {"op": "sgd", "learning_rate": 0.1},
    }
    inputs = {name: TensorType.parse(text) for name, text in spec["inputs"].items()}
    rows = {"train": columns(inputs, 31, [1]), "eval": columns(inputs, 17, [2])}
    file = write_spec(spec, rows, tmp_path)
    plan = compile(file, tmp_path / "seen")
    initial = initial_values({p.name: p.shape for p in plan.parameters}, [3])
    placed, alone = (
        run_build(file, tmp_path / name, initial, single_process=name == "alone")
        for name in ("placed", "alone")
    )
    check_same(placed, run_plain(file, rows, initial), "placed against numpy")
    lines = zip(
        [*placed.history, *placed.evaluations.values()],
        [*alone.history, *alone.evaluations.values()],
        strict=True,
    )
    for got, wanted in lines:
        for name in COUNTED:
            np.testing.assert_equal(got[name], wanted[name])
        for name in SUMMED:
            np.testing.assert_allclose(got[name], wanted[name], rtol=1e-14)
