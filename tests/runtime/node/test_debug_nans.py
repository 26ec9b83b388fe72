"""`debug_nans` names the op that causes a loss that is not finite."""

from __future__ import annotations

import re

import numpy as np
import pytest

import placer
from placer.errors import RunError

SPEC = """\
nodes: {worker: {count: 2}}
inputs: {x: "float32[batch, 2]"}
data: {train: {source: "npz:rows.npz", batch: 4}, eval: {source: "npz:rows.npz"}}
graph:
OPS
train: {minimize: loss, optimizer: {op: sgd, learning_rate: RATE}}
"""
MASKED = """\
  - {name: zero, op: constant, value: 0.0, shape: [1, 2]}
  - {name: there, op: greater, in: [x, zero]}
  - {name: logs, op: log, in: x, place: /node:worker:0}
  - {name: kept, op: where, in: [there, logs, zero]}
  - {name: h, op: fc, in: kept, size: 1}
  - {name: loss, op: reduce_mean, in: h}"""


@pytest.fixture
def run(tmp_path):
    def launch(ops, x, rate=0.1):
        np.savez(tmp_path / "rows.npz", x=np.asarray(x, np.float32))
        text = SPEC.replace("OPS", ops).replace("RATE", str(rate))
        (tmp_path / "model.yaml").write_text(text)
        placer.compile(tmp_path / "model.yaml", tmp_path / "build")
        return placer.launch(tmp_path / "build", debug_nans=True, in_process=True)

    return launch


def failure(run, *args, **kwargs):
    """Return the message of the run's error; its position in the program is `at N`."""
    with pytest.raises(RunError) as error:
        run(*args, **kwargs)
    return re.sub(r"at [\w-]+/program.py:\d+, \w+", "at N", str(error.value))


def test_nan_in_the_data_is_found_where_it_is_used(run):
    x = np.ones((12, 2))
    x[5, 1] = np.nan
    ops = """\
  - place: /node:worker:0
    ops: [{name: h, op: fc, in: x, size: 1}]
  - place: /node:worker:1
    ops: [{name: loss, op: reduce_mean, in: h}]"""
    assert failure(run, ops, x) == (
        "worker:0: step 2: FloatingPointError: fc gives nan in 1 of 4 values; its"
        " operand 1 is already not finite\n  at N: op h at model.yaml:6:18"
    )


def test_nan_of_a_gradient_is_found_before_the_update(run):
    """The square root of 0 is 0, so the loss of step 1 is finite; its gradient is
    not."""
    ops = """\
  - {name: h, op: fc, in: x, size: 1}
  - {name: none, op: scale, in: h, factor: 0.0}
  - {name: root, op: sqrt, in: none}
  - {name: loss, op: reduce_mean, in: root}"""
    message = failure(run, ops, np.ones((4, 2)))
    assert "step 1: FloatingPointError: scale.backward gives nan" in message
    assert "first in this step: sqrt.backward gives inf in 2 of 2 values" in message
    assert message.endswith("at N: op none at model.yaml:6:12")


def test_an_infinite_loss_names_the_first_infinite_op(run):
    ops = """\
  - {name: h, op: fc, in: x, size: 1}
  - {name: huge, op: exp, in: x, place: /node:worker}
  - {name: both, op: mul, in: [huge, h]}
  - {name: loss, op: reduce_mean, in: both}"""
    message = failure(run, ops, np.full((4, 2), 1000.0))
    assert "step 1: FloatingPointError: " in message
    assert re.search(
        r"first in this step: exp gives inf in \d of \d values at N", message
    )
    assert "op huge at model.yaml:6:12" in message


def test_masked_infinity_does_not_stop_the_run(run):
    x = np.ones((8, 2))
    x[2, 0] = 0
    assert np.isfinite(run(MASKED, x).metrics["loss"])
