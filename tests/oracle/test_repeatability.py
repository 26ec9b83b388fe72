"""R2: the same spec compiles and trains to the same bytes every time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import compiled_specs
from support.histories import lines_without_times
from support.marks import slow_but

import placer
from placer.compiler.driver import compile
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

ROOT = Path(placer.__file__).parents[1]
SPECS = Path(__file__).parents[2] / "specs"

HARD = """
name: hard
nodes: {worker: {count: 4}, ps: {count: 3}}
inputs: {image: "float32[batch, 64]", label: "int32[batch]"}
data:
  train: {source: "sklearn:digits", batch: 96, shuffle: true, remainder: keep}
  eval: {source: "sklearn:digits", batch: 96}
graph:
  - {name: small, op: scale, in: image, factor: 0.0625}
  - {name: h1, op: fc, in: small, size: 32, activation: tanh, place: "/node:worker"}
  - {name: h2, op: fc, in: h1, size: 32, activation: relu, place: "/node:worker:0-2"}
  - {name: both, op: add, in: [h1, h2]}
  - {name: logits, op: fc, in: both, size: 10, place: "/node:worker:1"}
  - {name: error, op: softmax_cross_entropy, in: [logits, label]}
  - {name: squares, op: mul, in: [h1.w, h1.w], place: "/node:worker"}
  - {name: norm, op: reduce_sum, in: squares}
  - {name: penalty, op: scale, in: norm, factor: 0.001}
  - {name: loss, op: add, in: [error, penalty], place: "/node:worker"}
train:
  minimize: loss
  clip: {global_norm: 0.5}
  slicing: {min_block: 100, dispatch: hash}
  optimizer:
    - {op: momentum, learning_rate: 0.05, match: "h1.*", place: "/node:worker"}
    - {op: adam, learning_rate: 0.01}
"""

NOISY = """
name: noisy
nodes: {worker: {count: 3}, ps: {count: 2}}
inputs: {image: "float32[batch, 64]", label: "int32[batch]"}
data:
  train: {source: "sklearn:digits", batch: 96, shuffle: true, remainder: keep}
  eval: {source: "sklearn:digits", batch: 96}
graph:
  - {name: small, op: scale, in: image, factor: 0.0625}
  - {name: h1, op: fc, in: small, size: 32, activation: tanh, place: "/node:worker"}
  - remat: true
    ops:
      - {name: normed, op: batch_norm, in: h1}
      - {name: dropped, op: dropout, in: normed, rate: 0.3, place: "/node:worker:0-1"}
      - {name: h2, op: fc, in: dropped, size: 32, activation: gelu}
  - {name: shaken, op: dropout, in: h2, rate: 0.5, place: "/node:worker"}
  - {name: logits, op: fc, in: shaken, size: 10}
  - {name: loss, op: softmax_cross_entropy, in: [logits, label]}
  - {name: accuracy, op: accuracy, in: [logits, label]}
parameters:
  - {match: "*.b", decay: false}
train:
  minimize: loss
  metrics: [loss, accuracy]
  clip: {norm: 0.5}
  slicing: {min_block: 100}
  optimizer:
    - {op: lars, learning_rate: 0.5, match: "logits.*", place: "/node:worker"}
    - {op: lamb, learning_rate: 0.01, weight_decay: 0.1}
"""
MESHES = NOISY.replace("worker: {count: 3}", "worker: {count: 2, devices: {gpu: 2}}")
OWN_SPECS = {"hard": HARD, "noisy": NOISY, "meshes": f"{MESHES}emulate: true\n"}


def contents(folder):
    """Return the contents of all files in a folder, by relative path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


EVERY_SPEC = [*sorted(file.stem for file in SPECS.glob("*.yaml")), "digits_py"]
"""The names of all specs; digits_py is the Python file."""


@pytest.mark.parametrize(
    "names",
    [
        ["digits"],
        pytest.param([*EVERY_SPEC, "flax_block_py"], marks=pytest.mark.slow),
    ],
    ids=["one", "all"],
)
def test_builds_have_the_same_bytes_in_every_process(names, tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    compiled_specs.compile_specs(SPECS, here, names)
    seed = "1" if os.environ.get("PYTHONHASHSEED") == "4242" else "4242"
    subprocess.run(
        [
            sys.executable,
            compiled_specs.__file__,
            str(SPECS),
            str(there),
            ",".join(names),
        ],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert contents(here) == contents(there)
    assert {*os.listdir(here)} >= {*names, "digits_one"}


def test_compiling_twice_writes_the_same_bytes(tmp_path):
    spec = tmp_path / "hard.yaml"
    spec.write_text(HARD)
    for name in ("first", "second"):
        compile(spec, tmp_path / name)
    first = contents(tmp_path / "first")
    assert first == contents(tmp_path / "second")
    compile(spec, tmp_path / "first")
    assert first == contents(tmp_path / "first")


def test_a_build_contains_no_absolute_path(tmp_path):
    spec = tmp_path / "hard.yaml"
    spec.write_text(HARD)
    compile(spec, tmp_path / "build")
    for path, content in contents(tmp_path / "build").items():
        assert str(tmp_path).encode() not in content, path


@pytest.mark.parametrize("model", slow_but(["digits"], ["digits", *OWN_SPECS]))
def test_two_synchronous_runs_are_equal_bit_for_bit(model, tmp_path):
    spec = SPECS / f"{model}.yaml"
    if model in OWN_SPECS:
        spec = tmp_path / spec.name
        spec.write_text(OWN_SPECS[model])
    compile(spec, tmp_path / "build")
    outputs = []
    for name in ("first", "second"):
        options = Options(
            steps=18,  # an epoch of 1438 rows with its short last batch, and more
            history=tmp_path / f"{name}.jsonl",
            save_params=tmp_path / f"{name}.safetensors",
        )
        run_in_threads(tmp_path / "build", options)
        lines = lines_without_times(options.history)
        outputs.append((lines, options.save_params.read_bytes()))
    assert outputs[0] == outputs[1]
