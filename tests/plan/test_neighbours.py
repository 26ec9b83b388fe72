"""Which processes of a run connect: those that exchange messages in a step or a drain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from placer.compiler.driver import compile
from placer.plan.plan import neighbours

SPEC = """\
name: small
nodes: {ps: {count: 2}, worker: {count: 3}}
inputs: {x: "float32[batch, 2]"}
data:
  train: {source: "npz:rows.npz", batch: 6}
graph:
  - place: /node:worker
    ops:
      - {name: w, op: parameter, shape: [2], init: zeros}
      - {name: v, op: parameter, shape: [2], init: ones}
      - {name: h, op: add, in: [x, w]}
      - {name: g, op: mul, in: [h, v]}
      - {name: c, op: call, fn: "counting:count", in: x, out: "float32[batch, 2]", state: {steps: {shape: [], init: zeros, dtype: int32}}}
      - {name: y, op: mul, in: [g, c]}
      - {name: loss, op: reduce_mean, in: y}
train:
  minimize: loss
  epochs: 1
  optimizer: {op: sgd, learning_rate: 0.1, place: /node:ps, update: UPDATE}
"""
MODULE = """\
def count(params, state, x, *, rng, training):
    return x * state["steps"], {"steps": state["steps"] + 1}
"""


@pytest.mark.parametrize("update", ["async", "{sync: {backup: 1}}"])
def test_processes_connect_for_state_and_for_the_choice_of_workers(
    update: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "rows.npz", x=np.ones((12, 2), np.float32))
    (tmp_path / "counting.py").write_text(MODULE)
    (tmp_path / "small.yaml").write_text(SPEC.replace("UPDATE", update))
    plan = compile(tmp_path / "small.yaml", tmp_path / "build")
    # A drain gives all workers the state of the first one.
    assert neighbours(plan, "worker:0") == {"ps:0", "ps:1", "worker:1", "worker:2"}
    assert neighbours(plan, "worker:2") == {"ps:0", "ps:1", "worker:0"}
    # With backup workers, the first server tells the other which workers a step takes.
    # It is also the control node.
    workers = {"worker:0", "worker:1", "worker:2"}
    assert neighbours(plan, "ps:1") == {"ps:0", *workers}


def test_servers_connect_with_backup_workers(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=np.ones((12, 2), np.float32))
    (tmp_path / "counting.py").write_text(MODULE)
    nodes = "worker: {count: 3}, ps: {count: 2}"
    found = {}
    for update in ("async", "{sync: {backup: 1}}"):
        text = SPEC.replace("ps: {count: 2}, worker: {count: 3}", nodes)
        (tmp_path / "small.yaml").write_text(text.replace("UPDATE", update))
        plan = compile(tmp_path / "small.yaml", tmp_path / "build")
        found[update] = neighbours(plan, "ps:1")
    assert "ps:0" not in found["async"]
    assert "ps:0" in found["{sync: {backup: 1}}"]
