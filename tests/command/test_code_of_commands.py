"""Which command runs which Python code of a spec: the table of docs/reference/security.md."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.spec_models import initial_parameters

import placer
from placer.command.cli import main

MARK = """\
import os
from pathlib import Path


def mark(what):
    folder = Path(os.environ["PLACER_TEST_MARKS"])
    (folder / f"{Path(__file__).stem} {what}").touch()


mark("imported")
"""
MODULES = {
    "layer": """
def double(params, state, x, rng, training):
    mark("called")
    return x * 2, state
""",
    "score": """
def first(h):
    mark("called")
    return h[:, 0]
""",
    "traced": """
def twice(x):
    mark("called")
    return x * 2
""",
    "rows": """
def train():
    mark("called")
    return [{"x": [0.0, 0.0]}] * 4
""",
    "program": """
import traced

import placer
from placer import layers, optimizer


def build():
    mark("called")
    train = {"source": "python:rows:train", "batch": 4}
    program = placer.Program(nodes={"worker": {"count": 1}}, data={"train": train})
    with program:
        x = layers.data("x", "float32[batch, 2]")
        h = layers.fc(placer.trace(traced.twice, x), 4, name="h")
        optimizer.SGD(0.1).minimize(layers.reduce_mean(h))
    program.update(predict={"outputs": ["h"]})
    return program
""",
}
PLAIN = """\
nodes: {worker: {count: 1}}
inputs: {x: "float32[batch, 2]"}
data: {train: {source: "python:rows:train", batch: 4}}
graph:
  - {name: h, op: fc, in: x, size: 4}
CALLS
  - {name: loss, op: reduce_mean, in: h}
train: {minimize: loss, optimizer: {op: sgd, learning_rate: 0.1}METRICS}
predict: {outputs: [OUTPUT]}
"""
CALLS = """\
  - {name: two, op: call, fn: "layer:double", in: h, batch: rows, out: "float32[batch, 4]"}
  - {name: score, op: metric, fn: "score:first", in: two}"""
SPECS = {
    "plain": PLAIN.replace("CALLS\n", "").replace("METRICS", "").replace("OUTPUT", "h"),
    "calls": PLAIN.replace("CALLS", CALLS)
    .replace("METRICS", ", metrics: [score]")
    .replace("OUTPUT", "two"),
}
NONE, ROWS = frozenset[str](), frozenset({"rows"})
OF_CALLS, OF_PROGRAM = frozenset({"layer", "score"}), frozenset({"program", "traced"})
IN_PROCESS = "--in-process --steps 1 --quiet"
PREDICT = "--params {}.params --out out.npz --in-process"
COMMANDS = {
    "check calls.yaml": OF_CALLS | ROWS,
    "check calls.yaml --no-data": OF_CALLS,
    "check plain.yaml --no-code": NONE,
    "show calls.yaml": OF_CALLS,
    "show plain.yaml": NONE,
    "explain calls.yaml": OF_CALLS,
    "compile calls.yaml --out new": OF_CALLS,
    "compile plain.yaml --out new": NONE,
    f"train plain.yaml {IN_PROCESS} --no-code": ROWS,
    "show calls": NONE,
    "explain calls": NONE,
    f"launch calls {IN_PROCESS}": OF_CALLS | ROWS,
    f"predict calls {PREDICT.format('calls')} --in rows.npz": {
        "layer",
        "score imported",
    },
    f"predict calls {PREDICT.format('calls')}": {"layer", "score imported", "rows"},
    f"predict plain.yaml {PREDICT.format('plain')} --in rows.npz --no-code": NONE,
    "export calls --params calls.params --out new": {"layer"},
    "check program.py:build": OF_PROGRAM | ROWS,
    "show program.py:build": OF_PROGRAM,
    "to-yaml program.py:build": OF_PROGRAM,
    "explain program": NONE,
    f"launch program {IN_PROCESS}": {"traced", "rows"},
}
"""The modules that each command imports and calls, or imports only. Specs have a suffix;
what has none is a build. `test_hostile_specs.py` has the errors of `--no-code`."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with specs and their builds; modules leave marks in the folder `marks`."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "marks").mkdir()
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(MARK + text)
    for name, text in SPECS.items():
        (folder / f"{name}.yaml").write_text(text)
    np.savez(folder / "rows.npz", x=np.zeros((4, 2), np.float32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLACER_TEST_MARKS", str(folder / "marks"))
        patch.chdir(folder)
        for spec in ("plain.yaml", "calls.yaml", "program.py:build"):
            name = spec.partition(".")[0]
            plan = placer.compile(folder / spec, folder / name)
            save_file(initial_parameters(plan), folder / f"{name}.params")
    return folder


def run(command: str, folder: Path, patch: pytest.MonkeyPatch) -> tuple[int, set[str]]:
    """Run a command; return its status, and the marks of modules."""
    marks = folder / "marks"
    for mark in marks.iterdir():
        mark.unlink()
    patch.setenv("PLACER_TEST_MARKS", str(marks))
    patch.chdir(folder)
    for name in MODULES:
        patch.delitem(sys.modules, name, raising=False)
    with pytest.raises(SystemExit) as ended:
        main(command.split())
    assert isinstance(ended.value.code, int)
    return ended.value.code, {mark.name for mark in marks.iterdir()}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs_the_code_that_the_table_names(
    command: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = COMMANDS[command]
    command = command.replace("--out new", f"--out {tmp_path / 'new'}")
    status, marks = run(command, folder, monkeypatch)
    assert status == 0
    called = {name for name in ran if " " not in name}
    both = {f"{name} {what}" for name in called for what in ("imported", "called")}
    assert marks == both | (ran - called)
