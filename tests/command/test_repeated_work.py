"""What several nodes compute for the whole batch is said, with what to do about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from placer.command.cli import commands
from placer.resources import find

MIXED = """\
name: mixed
nodes: {worker: {count: 2}}
inputs: {x: "float32[batch, 64]"}
data: {train: {source: "npz:rows.npz", batch: 32}}
graph:
  - place: /node:worker/cpu
    ops:
      - {name: h, op: fc, in: x, size: 64}
      - {name: pairs, op: matmul, in: [h, h], transpose_b: true}
      - {name: loss, op: reduce_mean, in: pairs}
train:
  minimize: loss
  optimizer: {op: sgd, learning_rate: 0.1}
"""
TRACED = """\
import numpy as np
from placer import Program, layers, optimizer, place_guard, trace


def apply(w, x):
    with place_guard("/cpu"):
        return x @ w



def build():
    with Program(
        name="traced",
        nodes={"worker": {"count": 2}},
        data={"train": {"source": "npz:rows.npz", "batch": 8}},
    ) as program:
        x = layers.data("x", "float32[batch, 64]")
        with place_guard("/node:worker"):
            w = np.eye(64, dtype=np.float32)
            y = trace(apply, w, x, name="net"BATCH)
            loss = layers.reduce_mean(layers.relu(y), name="loss")
        with place_guard("/node:worker/cpu"):
            optimizer.SGD(0.1).minimize(loss)
    return program
"""


def said(*args: object) -> None:
    commands.main([*map(str, args)], standalone_mode=False)


def test_an_op_that_mixes_rows_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, build = tmp_path / "mixed.yaml", tmp_path / "build"
    spec.write_text(MIXED)
    said("compile", spec, "--out", build)
    _, line, _ = capsys.readouterr().out.splitlines()
    # 2 · 32 · 64 · 32 FLOPs forward, twice that backward; the mean is little.
    assert line == (
        "  30% of a step's FLOPs (394.2 kFLOPs) are computed again by other nodes:"
        " pairs, loss"
    )
    said("explain", build, "pairs")
    (line,) = [
        each for each in capsys.readouterr().out.splitlines() if "each of" in each
    ]
    assert line == (
        "  each of 2 nodes computes it for the whole batch: 393.2 kFLOPs a step are"
        " computed again, with its gradient"
    )
    said("explain", build)
    assert "computed again by other nodes: pairs, loss" in capsys.readouterr().out
    said("show", build)
    shown = capsys.readouterr()
    assert shown.out == (build / "graph.txt").read_text()
    assert "computed again by other nodes: pairs, loss" in shown.err


def test_a_traced_function_that_is_whole_has_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.py"
    file.write_text(TRACED.replace("BATCH", ', batch="whole"'))
    said("compile", f"{file}:build", "--out", tmp_path / "whole")
    out = capsys.readouterr().out
    assert "are computed again by other nodes: net, " in out
    assert "hint: say batch=\"rows\" of 'net' if no row depends on another" in out
    said("explain", tmp_path / "whole", "net")
    assert 'hint: say batch="rows"' in capsys.readouterr().out
    file.write_text(TRACED.replace("BATCH", ""))
    said("compile", f"{file}:build", "--out", tmp_path / "rows")
    assert "again" not in capsys.readouterr().out
    said("explain", tmp_path / "rows", "net")
    assert "again" not in capsys.readouterr().out


@pytest.mark.parametrize("place", ["/node:worker/cpu", "/node:ps/cpu"])
def test_an_optimizer_at_each_worker_is_no_work_done_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    text = find("specs/digits.yaml").read_text(encoding="utf-8")
    assert "/node:ps/cpu" in text
    spec = tmp_path / "digits.yaml"
    spec.write_text(text.replace("/node:ps/cpu", place))
    said("compile", spec, "--out", tmp_path / "build")
    assert "again" not in capsys.readouterr().out
