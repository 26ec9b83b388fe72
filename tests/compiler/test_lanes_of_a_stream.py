"""A stream of a Python function: its keys, and lanes that its readers can divide."""

from __future__ import annotations

from pathlib import Path

import pytest

from placer.compiler.driver import compile_in_memory
from placer.errors import GraphError, SpecError
from placer.place.layouts.partition import RowShard

SPEC = """\
nodes: {worker: {count: 3}}
inputs:
  x: float32[batch, 2]
  label: int32[batch]
data:
  train:
    source: "python:clicks:rows"
    batch: 120
    stream: {lanes: 12, rows: 250}
graph:
  - place: /node:worker/cpu
    ops:
      - {name: y, op: fc, in: x, size: 2}
      - {name: loss, op: softmax_cross_entropy, in: [y, label]}
train:
  minimize: loss
  optimizer: {op: sgd, learning_rate: 0.1, place: /node:worker/cpu}
"""

MISTAKES = [
    (
        "lanes: 12",
        "lanes: 7",
        "9:21: 7 lanes do not divide a batch of 120 rows",
        "lanes: 6 or lanes: 8",
    ),
    (
        "lanes: 12",
        "lanes: 130",
        "9:21: 130 lanes do not divide a batch",
        "use lanes: 120",
    ),
    (
        "lanes: 12",
        "lanes: 10",
        "9:21: 10 lanes cannot be divided among 3 readers",
        "lanes: 6 or lanes: 12; 10 lanes can be divided among 1, 2, 5 or 10 readers",
    ),
    (
        "train:\n  min",
        "train:\n  microbatches: 5\n  min",
        "9:21: 12 lanes cannot be divided among 3 readers times 5",
        "lanes: 15",
    ),
    (
        "rows: 250",
        "rows: 119",
        "9:31: a pass of 119 rows does not fill one batch of 120",
        "rows: 120",
    ),
    (
        ", rows: 250",
        "",
        "9:13: 'stream' of a Python function needs 'rows'",
        "write both",
    ),
    (
        "lanes: 12, ",
        "",
        "9:13: 'stream' of a Python function needs 'lanes'",
        "write both",
    ),
    (
        "lanes: 12, rows: 250",
        "files: 1",
        "9:5: a stream of a Python function needs 'lanes' and",
        "lanes: 24",
    ),
    (
        "lanes: 12",
        "lanes: 12, files: 1",
        "9:25: 'files' cannot be used with 'lanes'",
        "leave files out",
    ),
    (
        "lanes: 12",
        "lanes: 12, late: train",
        "9:25: 'late' cannot be used with 'lanes'",
        "leave late out",
    ),
    (
        "batch: 120",
        "batch: 120\n    shuffle: true",
        "9:5: 'shuffle' cannot be used with a stream",
        "leave shuffle",
    ),
    (
        "batch: 120",
        "batch: 120\n    remainder: keep",
        "9:5: 'remainder: keep' cannot be used",
        "leave remainder",
    ),
    (
        "python:clicks:rows",
        "npz:*.npz",
        "9:14: 'lanes' and 'rows' are for python:",
        "files: 1",
    ),
]


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    (tmp_path / "clicks.py").write_text("def rows(lane, lanes, mark): ...\n")
    return tmp_path


@pytest.mark.parametrize(("old", "new", "message", "hint"), MISTAKES)
def test_a_mistake_has_a_position_and_a_hint(
    folder: Path, old: str, new: str, message: str, hint: str
) -> None:
    assert old in SPEC
    (folder / "m.yaml").write_text(SPEC.replace(old, new, 1))
    with pytest.raises(SpecError) as caught:
        compile_in_memory(folder / "m.yaml")
    assert message in str(caught.value)
    assert hint in str(caught.value.hint)


def test_a_heter_node_of_an_asynchronous_worker_reads_rows(folder: Path) -> None:
    ops = "      - {name: loss,"
    heter = f"  - place: /node:heter/cpu\n    ops:\n{ops}"
    text = SPEC.replace("{worker: {count: 3}}", "{worker: {}, heter: {}, ps: {}}")
    text = text.replace("place: /node:worker/cpu}", "update: async, place: /node:ps}")
    (folder / "m.yaml").write_text(text.replace(ops, heter))
    compile_in_memory(folder / "m.yaml")
    middle = "      - {name: z, op: fc, in: y, size: 2}\n  - place: /node:worker/cpu\n"
    middle = heter.replace(ops, f"{middle}    ops:\n{ops}")
    text = text.replace(ops, middle).replace("in: [y,", "in: [z,")
    (folder / "m.yaml").write_text(text)
    with pytest.raises(SpecError) as caught:
        compile_in_memory(folder / "m.yaml")
    assert "9:13: heter:0 computes for worker:0, which trains" in str(caught.value)


def test_readers_divide_the_lanes(folder: Path) -> None:
    (folder / "m.yaml").write_text(SPEC)
    plan = compile_in_memory(folder / "m.yaml", nodes={"worker": 4}).plan
    assert plan.train.stream is not None
    assert (plan.train.stream.lanes, plan.train.stream.rows) == (12, 250)
    assert {each.shard for each in plan.nodes[3].step.reads} == {RowShard((3,), 4)}
    with pytest.raises(GraphError, match="120 rows cannot be split evenly") as caught:
        compile_in_memory(folder / "m.yaml", nodes={"worker": 7})
    among = "12 lanes can be divided among 1, 2, 3, 4, 6 or 12 readers"
    assert caught.value.hint == among
    plan = compile_in_memory(folder / "m.yaml", single_process=True).plan
    (node,) = plan.nodes
    assert {each.shard for each in node.step.reads} == {RowShard((0,), 1)}
