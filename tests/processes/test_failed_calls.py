"""A user-defined function that raises is reported with the line of its op in the spec.

If it raises while it is traced, compilation fails. If it raises only in the run, all
nodes end.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.real_runs import CommandResult, launch, node_processes

import placer
from placer.errors import SpecError

FUNCTIONS = """\
import jax


def traced(params, state, x, rng, training):
    return x @ params["w"][:2], state


def full(params, state, x, rng, training):
    if x.shape[0] == 1:
        raise ValueError("one row is not enough")
    return x @ params["w"], state


def training(params, state, x, rng, training):
    if training is False:
        raise ValueError("not made for evaluation")
    return x @ params["w"], state


def callback_raises(params, state, x, rng, training):
    def look(values):
        if (values > 100).any():
            raise ValueError("a row is out of range")

    jax.debug.callback(look, x)
    return x @ params["w"], state
"""
ROWS = """\
def train():
    for i in range(64):
        yield {"x": [i % 3, i % 5, 1000.0 if i == 52 else 0.0, 1.0], "y": float(i % 11)}


def test():
    for i in range(17):
        yield {"x": [i % 3, i % 5, 0.0, 1.0], "y": float(i % 11)}
"""
SPEC = """\
name: called
nodes:
  worker: {count: 2}
  ps: {count: 1}
inputs:
  x: float32[batch, 4]
  y: float32[batch]
data:
  train: {source: "python:rows:train", batch: 8}
  eval: {source: "python:rows:test"}
graph:
  - place: /node:worker/cpu
    ops:
      - name: own
        op: call
        fn: "functions:FUNCTION"
        in: x
        batch: BATCH
        params: {w: {shape: [4, 4], init: xavier_uniform}}
        out: "float32[batch, 4]"
      - {name: out, op: fc, in: own, size: 1}
      - {name: prediction, op: reshape, in: out, shape: [batch]}
      - {name: loss, op: mean_squared_error, in: [prediction, y]}
train:
  minimize: loss
  epochs: 2
  metrics: [loss]
  optimizer: {op: sgd, learning_rate: 1e-7, place: /node:ps/cpu}
"""
OP = r"own at called\.yaml:14:15"


def compile_with_function(folder: Path, function: str, batch: str) -> None:
    """Compile a model that calls the function."""
    (folder / "functions.py").write_text(FUNCTIONS)
    (folder / "rows.py").write_text(ROWS)
    text = SPEC.replace("FUNCTION", function).replace("BATCH", batch)
    (folder / "called.yaml").write_text(text)
    placer.compile(folder / "called.yaml", folder / "build")


def failed(folder: Path, function: str, batch: str) -> CommandResult:
    """Compile and launch that model; the run fails."""
    compile_with_function(folder, function, batch)
    ended = launch(folder / "build")
    assert (ended.status, ended.out) == (1, "")
    assert not node_processes(folder / "build")
    return ended


@pytest.mark.parametrize(
    ("function", "raised", "batch"),
    [
        ("traced", "TypeError: .+", "rows"),
        ("training", "ValueError: not made for evaluation", "whole"),
    ],
)
def test_an_error_while_tracing_is_reported_by_compile(
    function: str, raised: str, batch: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError) as caught:
        compile_with_function(tmp_path, function, batch)
    first, line, caret = str(caught.value).splitlines()
    prefix = rf"{re.escape(str(tmp_path))}/called\.yaml:14:15: op 'own' \(call\): "
    where = r" \(functions\.py:\d+\)"
    assert re.fullmatch(f"{prefix}functions:{function} raised {raised}{where}", first)
    assert line == "  14 |       - name: own"
    assert caret == "     |               ^^^"
    assert not (tmp_path / "build").exists()


@pytest.mark.parametrize(
    ("function", "batch", "message"),
    [
        # The last batch of the evaluation has one of the 17 rows.
        ("full", "rows", "one row is not enough"),
        pytest.param("full", "whole", "one row is not enough", marks=pytest.mark.slow),
    ],
)
def test_an_error_that_only_a_run_raises_ends_it_before_the_first_step(
    function: str, batch: str, message: str, tmp_path: Path
) -> None:
    ended = failed(tmp_path, function, batch)
    assert "Traceback" not in ended.err
    what, where, _ = ended.last_message.splitlines()
    assert re.fullmatch(rf"worker:[01] failed: compiling: ValueError: {message}", what)
    assert re.fullmatch(rf"  at worker(-[01])?/program\.py:\d+, \w+: op {OP}", where)


def test_an_error_in_a_callback_ends_the_step_on_all_nodes(tmp_path: Path) -> None:
    """Row 52 is the fifth row of the seventh batch, which the second worker has."""
    ended = failed(tmp_path, "callback_raises", "rows")
    assert "worker:1 failed: step 7: " in ended.err
    line = FUNCTIONS[: FUNCTIONS.index('raise ValueError("a row')].count("\n") + 1
    assert f"ValueError: a row is out of range (functions.py:{line})\n" in ended.err
    assert "Traceback" not in ended.err
    where = rf"  at worker/program\.py:\d+, forward_backward: ops {OP} to loss at "
    assert re.search(where, ended.err)
