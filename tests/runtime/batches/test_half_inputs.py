"""A model with a half-float input trains on rows whose source has other floats."""

import numpy as np
import pytest

import placer

SPEC = """\
nodes: {worker: {count: 2}}
inputs: {x: "DTYPE[batch, 2]"}
data: {train: {source: "npz:rows.npz", batch: 4}}
graph:
  - place: /node:worker
    ops:
      - {name: wide, op: cast, in: x, dtype: float32}
      - {name: loss, op: reduce_mean, in: wide}
      - {name: h, op: fc, in: wide, size: 1}
      - {name: target, op: reduce_mean, in: h}
train: {minimize: target, metrics: [loss], optimizer: {op: sgd, learning_rate: 0.1, place: /node:worker}}
"""


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_floats_are_read_and_split_over_workers(tmp_path, dtype):
    x = np.linspace(0.1, 3, 8).reshape(4, 2)
    np.savez(tmp_path / "rows.npz", x=x)
    (tmp_path / "model.yaml").write_text(SPEC.replace("DTYPE", dtype))
    placer.compile(tmp_path / "model.yaml", tmp_path / "build")
    result = placer.launch(tmp_path / "build", in_process=True)
    expected = x.astype(np.dtype(dtype)).astype(np.float64).mean()
    assert result.metrics["loss"] == pytest.approx(expected, rel=1e-6)
    assert result.metrics["loss"] != pytest.approx(x.mean(), rel=1e-6)
