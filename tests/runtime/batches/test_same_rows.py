"""Nodes that read different rows of one source raise before the first step."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import placer
from placer import RunError
from placer.plan.settings.data.source import Data
from placer.readers import Column, Digests, ReadOptions, open_source
from placer.readers.digests import sample_rows
from placer.runtime.batches.same_rows import check_same_rows
from placer.runtime.control.options import Options
from placer.runtime.process.environment import node_environment
from placer.runtime.process.threads import run_in_threads

STAGES = """\
nodes: {worker: {count: 2}}
inputs: {x: "float32[batch, 1]", label: "float32[batch, 1]"}
data: {train: {source: "python:rows:rows", batch: 8}%s}
graph:
  - {name: h, op: fc, in: x, size: 1, place: /node:worker:0}
  - {name: loss, op: mean_squared_error, in: [h, label], place: /node:worker:1}
train: {minimize: loss, optimizer: {op: sgd, learning_rate: 0.1}}
"""
PARALLEL = STAGES.replace("worker:0}", "worker}").replace("worker:1}", "worker}")
HEAD = "import itertools, random\n"
FIXED = (
    "def fixed():\n    for i in range(300):\n        yield {'x': [i], 'label': [-i]}\n"
)
SHUFFLED = (
    "def rows():\n"
    "    order = list(range(300))\n"
    "    random.shuffle(order)\n"
    "    for i in order:\n        yield {'x': [i], 'label': [-i]}\n"
)
AUGMENTED = (
    "def rows():\n"
    "    for i in range(300):\n"
    "        noise = random.random() if i == 2 else 0\n"
    "        yield {'x': [i + noise], 'label': [-i]}\n"
)
DATASET = (
    "class Rows:\n"
    "    def __len__(self):\n        return 300\n"
    "    def __getitem__(self, i):\n"
    "        noise = random.random() if i == 299 else 0\n"
    "        return {'x': [i + noise], 'label': [-i]}\n"
    "def rows():\n    return Rows()\n"
)


def run_message(folder: Path, spec: str, module: str) -> str:
    (folder / "rows.py").write_text(HEAD + FIXED + module)
    (folder / "model.yaml").write_text(spec)
    placer.compile(folder / "model.yaml", folder / "build")
    with pytest.raises(RunError) as caught:
        run_in_threads(folder / "build", Options(steps=1))
    assert "seed random numbers" in str(caught.value.hint)
    return caught.value.message


@pytest.mark.parametrize("module", [AUGMENTED, DATASET])
def test_a_random_augmentation_is_reported_with_row_and_column(tmp_path, module):
    row = 2 if module is AUGMENTED else 299
    assert run_message(tmp_path, PARALLEL % "", module) == (
        "the nodes do not read the same training data: python:rows:rows: row"
        f" {row} of column 'x' on worker:1 differs from that on worker:0"
    )


def test_stages_that_read_different_columns_compare_rows(tmp_path):
    """One node reads x, the other label; each digests both."""
    message = run_message(tmp_path, STAGES % "", SHUFFLED)
    assert message.startswith("the nodes do not read the same training data")
    assert "on worker:1 differs from that on worker:0" in message


def test_rows_of_the_evaluation_are_compared(tmp_path):
    spec = STAGES % ', eval: {source: "python:rows:rows"}'
    spec = spec.replace('"python:rows:rows", batch', '"python:rows:fixed", batch')
    message = run_message(tmp_path, spec, SHUFFLED)
    assert message.startswith("the nodes do not read the same evaluation data")


WORDS = (
    "def rows():\n"
    "    for word in {f'word{i}' for i in range(300)}:\n"
    "        yield {'x': [int(word[4:])], 'label': [-int(word[4:])]}\n"
)


def build_words(folder: Path) -> Path:
    (folder / "rows.py").write_text(WORDS)
    (folder / "model.yaml").write_text(STAGES % "")
    placer.compile(folder / "model.yaml", folder / "build")
    return folder / "build"


def test_a_set_in_another_order_on_each_node_raises(tmp_path, monkeypatch):
    """Only processes, not threads, may order a set differently, if they are told to."""
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    with pytest.raises(
        RunError, match=r"python:rows:rows: row 0 of column '(x|label)'"
    ):
        placer.launch(build_words(tmp_path), steps=1)


@pytest.mark.slow
def test_launched_nodes_order_a_set_alike(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    assert placer.launch(build_words(tmp_path), steps=1).steps == 1


def test_nodes_order_sets_alike_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    assert node_environment(7)["PYTHONHASHSEED"] == "0"
    assert "PYTHONHASHSEED" not in os.environ
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert node_environment(7)["PYTHONHASHSEED"] == "7"


X, LABEL = Column("x", "float32", (2,)), Column("label", "int32", ())


def write_npz(folder: Path, order: np.ndarray) -> str:
    x = np.arange(1000, dtype=np.float32).reshape(500, 2)
    np.savez(folder / "rows.npz", x=x[order], label=np.arange(500)[order])
    return "npz:rows.npz"


def write_csv(folder: Path, order: np.ndarray) -> str:
    lines = [f"{2 * i},{2 * i + 1},{i}" for i in order.tolist()]
    (folder / "rows.csv").write_text("\n".join(["a,b,label", *lines]))
    return "csv:rows.csv"


def write_python(folder: Path, order: np.ndarray) -> str:
    (folder / "rows.py").write_text(
        "def rows():\n"
        f"    for i in {order.tolist()}:\n"
        "        yield {'x': [2 * i, 2 * i + 1], 'label': i}\n"
    )
    return "python:rows:rows"


def digests(folder: Path, source: str, own: Column, other: Column) -> Digests:
    mapping: dict[str, str | list[str]] | None = None
    if source.startswith("csv"):
        mapping = {"x": ["a", "b"]}
    reading = ReadOptions(other_columns=(other,), with_digests=True, seed=3)
    data = Data(source, columns=mapping)
    return open_source(data, [own], folder, reading).digests()


@pytest.mark.parametrize("write", [write_npz, write_csv, write_python])
def test_different_files_are_detected_across_columns(
    tmp_path: Path, write: Callable[[Path, np.ndarray], str]
) -> None:
    order = np.arange(500)
    source = write(tmp_path, order)
    first = digests(tmp_path, source, X, LABEL)
    data = Data(source, 8, None, None, False, 0, "drop")
    digests_by_node = {
        "worker:0": first,
        "worker:1": digests(tmp_path, source, LABEL, X),
    }
    check_same_rows(data, "training", digests_by_node)
    # Two rows that are not in the sample.
    one, two = [n for n in range(500) if n not in set(sample_rows(500, 3).tolist())][:2]
    order[[one, two]] = order[[two, one]]
    write(tmp_path, order)
    digests_by_node["worker:1"] = digests(tmp_path, source, LABEL, X)
    with pytest.raises(RunError, match=r"some row of column '(x|label)' on"):
        check_same_rows(data, "training", digests_by_node)


def test_the_compared_rows_are_the_ends_and_a_random_sample():
    rows = sample_rows(1000, 5).tolist()
    assert rows[:64] == list(range(64))
    assert rows[-64:] == list(range(936, 1000))
    assert len(set(rows)) == 256
    assert rows == sorted(rows) == sample_rows(1000, 5).tolist()
    assert rows != sample_rows(1000, 6).tolist()
    assert sample_rows(200, 5).tolist() == list(range(200))


def test_a_difference_between_many_nodes_names_some_of_them():
    data = Data("npz:a.npz", 8, None, {"x": "data"}, False, 0, "drop")
    digests_by_node = {
        f"worker:{i}": Digests((0,), {"x": (0 if i == 5 else 1,)}) for i in range(9)
    }
    with pytest.raises(RunError) as caught:
        check_same_rows(data, "training", digests_by_node)
    assert caught.value.message.endswith(
        "row 0 of column 'data' on worker:5 differs from that on worker:0, worker:1,"
        " worker:2 and 5 more"
    )
