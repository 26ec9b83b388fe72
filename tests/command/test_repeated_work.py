"""Work that several nodes repeat for the whole batch is reported, with a hint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from placer.command.cli import commands
from placer.system.resources import find_file

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


def run_command(*args: object) -> None:
    commands.main([*map(str, args)], standalone_mode=False)


def test_an_op_that_mixes_rows_is_reported(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec, build = tmp_path / "mixed.yaml", tmp_path / "build"
    spec.write_text(MIXED)
    np.savez(tmp_path / "rows.npz", x=np.ones((32, 64), np.float32))
    monkeypatch.setattr("placer.command.train.run_build", lambda *_, **__: None)
    run_command("train", spec, "--out", tmp_path / "run")
    assert "  30% of a step's FLOPs (394.2 kFLOPs)" in capsys.readouterr().out
    run_command("compile", spec, "--out", build)
    _, line, _ = capsys.readouterr().out.splitlines()
    # 2 · 32 · 64 · 32 FLOPs forward, twice that backward; the mean adds little.
    assert line == (
        "  30% of a step's FLOPs (394.2 kFLOPs) are repeated on several nodes: pairs, loss"
    )
    run_command("explain", build, "pairs")
    (line,) = [
        each for each in capsys.readouterr().out.splitlines() if "each of" in each
    ]
    assert line == (
        "  each of 2 nodes computes it for the whole batch: 393.2 kFLOPs per step are"
        " repeated, including its gradient"
    )
    run_command("explain", build)
    assert "repeated on several nodes: pairs, loss" in capsys.readouterr().out
    run_command("show", build)
    assert "repeated on several nodes: pairs, loss" in capsys.readouterr().out


def test_a_traced_function_with_batch_rule_whole_gets_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.py"
    file.write_text(TRACED.replace("BATCH", ', batch="whole"'))
    run_command("compile", f"{file}:build", "--out", tmp_path / "whole")
    out = capsys.readouterr().out
    assert "repeated on several nodes: net, " in out
    assert (
        "hint: declare batch=\"rows\" for 'net' if each row is computed independently"
        in out
    )
    run_command("explain", tmp_path / "whole", "net")
    assert 'hint: declare batch="rows"' in capsys.readouterr().out
    file.write_text(TRACED.replace("BATCH", ""))
    run_command("compile", f"{file}:build", "--out", tmp_path / "rows")
    assert "repeated" not in capsys.readouterr().out
    run_command("explain", tmp_path / "rows", "net")
    assert "repeated" not in capsys.readouterr().out
    run_command("explain", tmp_path / "rows", "net.w")
    assert (
        "  initialized with the values of net at compile time, in net.safetensors of the"
        " build\n"
    ) in capsys.readouterr().out


@pytest.mark.parametrize("place", ["/node:worker/cpu", "/node:ps/cpu"])
def test_an_optimizer_on_each_worker_is_not_repeated_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    text = find_file("specs/digits.yaml").read_text(encoding="utf-8")
    assert "/node:ps/cpu" in text
    spec = tmp_path / "digits.yaml"
    spec.write_text(text.replace("/node:ps/cpu", place))
    run_command("compile", spec, "--out", tmp_path / "build")
    assert "repeated" not in capsys.readouterr().out
