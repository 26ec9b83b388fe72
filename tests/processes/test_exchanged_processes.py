"""Optimizers on several workers, as processes: the bits are those of threads, whether
parts and sums are read in shared memory or sent over a network."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.marks import slow_but
from support.real_runs import launch

import placer
from placer.runtime.run.options import Options
from placer.runtime.run.threads import run_in_threads

SPEC = """\
name: exchanged
nodes: {worker: {count: 3}}
inputs: {x: "float32[batch, 64]", y: "int32[batch]"}
data: {train: {source: "npz:rows.npz", batch: 12}}
graph:
  - {name: h, op: fc, in: x, size: 1500, activation: tanh, place: /node:worker/cpu}
  - {name: z, op: fc, in: h, size: 5, place: /node:worker/cpu}
  - {name: loss, op: softmax_cross_entropy, in: [z, y], place: /node:worker/cpu}
train:
  minimize: loss
  epochs: 4
  optimizer: {op: adam, learning_rate: 0.001, place: /node:worker/cpu, EXCHANGE}
"""
"""Its ranges are large enough to be sent from shared memory without a copy."""
STEPS = 12
EXCHANGES = {
    "replicated": "shard_state: false",
    "sharded": "shard_state: true",
    "ring": "all_reduce: ring",
}
SHARED, TCP = ["--transport", "shared"], ["--transport", "tcp", "--insecure-network"]
CASES = {
    f"{name}, {options[1]}": (name, options)
    for name in EXCHANGES
    for options in (SHARED, TCP)
}


@pytest.mark.parametrize("case", slow_but(["sharded, shared"], list(CASES)))
def test_processes_have_the_bits_of_threads(case: str, tmp_path: Path) -> None:
    name, options = CASES[case]
    random = np.random.default_rng(0)
    x, y = random.normal(size=(36, 64)), random.integers(0, 5, 36)
    np.savez(tmp_path / "rows.npz", x=x.astype(np.float32), y=y.astype(np.int32))
    spec, build = tmp_path / "spec.yaml", tmp_path / "build"
    spec.write_text(SPEC.replace("EXCHANGE", EXCHANGES[name]))
    placer.compile(spec, build)
    run_in_threads(build, Options(steps=STEPS, save_params=tmp_path / "threads"))
    saved = tmp_path / "processes"
    done = launch(build, f"--steps={STEPS}", f"--save-params={saved}", *options)
    assert done.status == 0, done.err
    expected, actual = load_file(tmp_path / "threads"), load_file(saved)
    for parameter, value in expected.items():
        np.testing.assert_array_equal(actual[parameter], value, err_msg=parameter)
