"""Gradients between processes: the bits are those of threads, whether values are read in
shared memory or sent over a network."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.marks import slow_but
from support.real_runs import launch

import placer
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

SPEC = """\
name: exchanged
nodes: {NODES}
inputs: {x: "float32[batch, 64]", y: "int32[batch]"}
data: {train: {source: "npz:rows.npz", batch: 12}}
graph:
  - place: /node:worker/cpu
    ops:
      - {name: h1, op: fc, in: x, size: 1500, activation: tanh}
      - {name: h2, op: fc, in: h1, size: 700, activation: tanh}
      - {name: z, op: fc, in: h2, size: 5}
      - {name: loss, op: softmax_cross_entropy, in: [z, y]}
train:
  minimize: loss
  epochs: 4
  TRAIN
"""
"""The weights of h2, 4 MB, are several pieces of a message. The ranges of three workers
are large enough to be sent from shared memory without a copy."""
STEPS = 12
OPTIMIZER = "optimizer: {op: adam, learning_rate: 0.001, place: /node:"
ALONE = "worker: {count: 3}"
EXCHANGES = {
    "buckets": (
        "worker: {count: 2}, ps: {count: 2}",
        f"bucket_cap_mb: 0.5\n  {OPTIMIZER}ps/cpu}}",
    ),
    "replicated": (ALONE, f"{OPTIMIZER}worker/cpu, shard_state: false}}"),
    "sharded": (ALONE, f"{OPTIMIZER}worker/cpu, shard_state: true}}"),
    "ring": (ALONE, f"{OPTIMIZER}worker/cpu, all_reduce: ring}}"),
}
TRANSPORTS = {
    "shared memory": ["--transport=shared"],
    "network": ["--transport=tcp", "--insecure-network"],
}
IN_EVERY_RUN = [("buckets", "network"), ("sharded", "shared memory")]
CASES = slow_but(IN_EVERY_RUN, [(e, t) for e in EXCHANGES for t in TRANSPORTS])


@pytest.mark.parametrize(("exchange", "transport"), CASES)
def test_processes_have_the_bits_of_threads(
    exchange: str, transport: str, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(36, 64)), random.integers(0, 5, 36)
    np.savez(tmp_path / "rows.npz", x=x.astype(np.float32), y=y.astype(np.int32))
    spec, build = tmp_path / "spec.yaml", tmp_path / "build"
    nodes, train = EXCHANGES[exchange]
    spec.write_text(SPEC.replace("NODES", nodes).replace("TRAIN", train))
    plan = placer.compile(spec, build)
    if exchange == "buckets":
        assert {edge.bucket for edge in plan.step_edges if edge.sent_back} == {None}
        assert {edge.bucket for edge in plan.step_edges} == {None, 0, 1, 2}
    run_in_threads(build, Options(steps=STEPS, save_params=tmp_path / "threads"))
    options = [f"--steps={STEPS}", f"--save-params={tmp_path / 'processes'}"]
    done = launch(build, *options, *TRANSPORTS[transport])
    assert done.status == 0, done.err
    expected, actual = (load_file(tmp_path / n) for n in ("threads", "processes"))
    for parameter, value in expected.items():
        np.testing.assert_array_equal(actual[parameter], value, err_msg=parameter)
