"""Sums over nodes whose parts overflow their dtype although the whole sum does not."""

import numpy as np
import pytest

from placer.compiler.driver import compile as compile_model
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

SPEC = """
name: parts
nodes: {worker: {count: 2}}
inputs: {x: "float32[batch, 1]", z: "float32[batch, 1]"}
data: {train: {source: "npz:rows.npz", batch: 4}}
graph:
  - {name: h, op: fc, in: x, size: 1}
  - {name: loss, op: reduce_mean, in: h}
  - {name: half, op: cast, in: x, dtype: DTYPE}
  - {name: some, op: reduce_sum, in: half}
  - {name: twice, op: scale, in: some, factor: 2.0}
  - {name: scaled, op: cast, in: twice, dtype: float32}
  - {name: none, op: reduce_sum, in: z}
  - {name: zero, op: constant, value: 0.0, dtype: float32, shape: []}
  - {name: one, op: constant, value: 1.0, dtype: float32, shape: []}
  - {name: infinite, op: div, in: [none, zero]}
  - {name: inverse, op: div, in: [one, infinite]}
train:
  minimize: loss
  epochs: 1
  metrics: [loss, scaled, inverse]
  optimizer: {op: sgd, learning_rate: 0.1}
"""


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("single_process", [True, False])
def test_only_the_whole_sum_can_overflow(tmp_path, dtype, single_process):
    # Twice the 40,000 of worker 0 overflows float16, and 0 / 0 on worker 1 is NaN.
    x = np.array([[20000], [20000], [-19000], [-19000]], np.float32)
    z = np.array([[1], [0], [0], [0]], np.float32)
    np.savez(tmp_path / "rows.npz", x=x, z=z)
    (tmp_path / "parts.yaml").write_text(SPEC.replace("DTYPE", dtype))
    compile_model(
        tmp_path / "parts.yaml", tmp_path / "build", single_process=single_process
    )
    metrics = run_in_threads(tmp_path / "build", Options(steps=1)).metrics
    assert metrics["scaled"] == pytest.approx(4000, rel=0.1)
    assert metrics["inverse"] == 0
