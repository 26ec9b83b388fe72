"""Data that does not fit a spec is found before a process starts, at its position."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import placer
from placer.command.cli import main
from placer.compiler import compile_in_memory
from placer.errors import DataError, SpecErrors
from placer.launcher import launch as launch_module
from placer.launcher.data_check import check_data
from placer.readers import check

SPEC = """\
nodes: {worker: {count: 1}}
inputs:
  x: float32[batch, 2]
  label: int32[batch]
data:
  train:
    source: "csv:rows.csv"
    batch: 8
    columns:
      x: [a, b]
    csv:
      vocabulary:
        label: ["no", "yes"]
  eval: {source: "csv:rows.csv"}
graph:
  - place: /node:worker/cpu
    ops:
      - {name: logits, op: fc, in: x, size: 2}
      - {name: loss, op: softmax_cross_entropy, in: [logits, label]}
train:
  minimize: loss
  metrics: [loss]
  optimizer: {op: sgd, learning_rate: 0.1, place: /node:worker/cpu}
"""
CSV = "a,b,label\n" + "1,2,yes\n3,4,no\n" * 8


def check_spec(text: str, folder: Path, *, code: bool = True) -> str:
    """Check the data of a spec in a folder; return the message, "" if it is valid."""
    spec = folder / "m.yaml"
    spec.write_text(text)
    compiled = compile_in_memory(spec)
    try:
        check_data(compiled.plan, folder, compiled.data_spans, code=code)
    except (DataError, SpecErrors) as error:
        return str(error).removeprefix(f"{folder}/")
    return ""


@pytest.mark.parametrize(
    ("old", "new", "rows", "at", "message"),
    [
        ("rows.csv", "row.csv", CSV, "7:14", "csv:row.csv: there is no such file"),
        ("rows.csv", ".", CSV, "7:14", "csv:. cannot be read: Is a directory"),
        ("[a, b]", "[a, c]", CSV, "10:10", "csv:rows.csv has no column 'c' for input"),
        ("[a, b]", '"z*"', CSV, "10:11", "csv:rows.csv has no column 'z*' for"),
        ('"no", "yes"', '"no"', CSV, "4:10", "'yes' is not in the vocabulary"),
        ('"yes"]', '"x", "yes"]', CSV, "4:10", "2 is outside 0-1"),
        ("        label:", "        lable:", CSV, "13:16", "has no column 'lable'"),
        ("x: [a, b]", "x: [a, f]\n    features: {f: {log1p: c}}", CSV, "11:19", "no column 'c' for feature 'f'"),
        ("x: [a, b]", "x: [a, f]\n    features: {f: {days: b}}", CSV, "10:10", "'2' is not a date"),
        ("batch: 8", "batch: 17", CSV, "7:14", "16 rows do not fill one batch of 17"),
        ("x: 1", "x: 1", CSV.replace("3,4", "3,four"), "10:10", "'four' is not a number"),
        ("x: 1", "x: 1", CSV + "1,2\n", "7:14", "line 18 has 2 cells"),
        ("x: 1", "x: 1", "", "7:14", "csv:rows.csv is empty"),
    ],
)  # fmt: skip
def test_a_csv_file_that_does_not_fit(old, new, rows, at, message, tmp_path):
    (tmp_path / "rows.csv").write_text(rows)
    found = check_spec(SPEC.replace(old, new, 1), tmp_path)
    assert found.startswith(f"m.yaml:{at}: ")
    assert message in found.splitlines()[0]
    assert "^" in found.splitlines()[2]


def test_a_source_that_fits_is_valid(tmp_path):
    (tmp_path / "rows.csv").write_text(CSV)
    assert check_spec(SPEC, tmp_path) == ""


def test_the_errors_of_both_sources_are_listed(tmp_path):
    wrong = SPEC.replace("rows.csv", "a.csv", 1).replace("rows.csv", "b.csv")
    found = check_spec(wrong, tmp_path)
    assert "m.yaml:7:14: csv:a.csv: there is no such file" in found
    assert "m.yaml:14:19: csv:b.csv: there is no such file" in found


def test_only_the_first_rows_of_a_large_file_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "WHOLE_NBYTES", 100)
    monkeypatch.setattr(check, "FIRST_ROWS", 4)
    (tmp_path / "rows.csv").write_text(CSV + "1,2,maybe\n")
    assert check_spec(SPEC, tmp_path) == ""
    (tmp_path / "rows.csv").write_text(CSV.replace("yes", "maybe"))
    assert "'maybe' is not in the vocabulary" in check_spec(SPEC, tmp_path)


PLAIN = SPEC.replace(
    '    columns:\n      x: [a, b]\n    csv:\n      vocabulary:\n        label: ["no", "yes"]\n',
    "",
)  # fmt: skip


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.ones((16, 3)), "label": np.ones(16)}, "column 'x' has shape [n, 3]"),
        ({"x": np.ones((16, 2)), "label": np.full(16, 2)}, "2 is outside 0-1"),
        ({"x": np.ones((16, 2)), "label": np.ones((16, 1))}, "'label' has shape [n, 1]"),
        ({"x": np.ones((16, 2)), "label": np.ones(15)}, "different numbers of rows"),
        ({"x": np.ones((16, 2))}, "has no column 'label'"),
        ({"x": np.ones((16, 2)), "label": np.ones(16)}, ""),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit(arrays, message, is_large, tmp_path, monkeypatch):
    if is_large:
        monkeypatch.setattr(check, "WHOLE_NBYTES", 0)
        monkeypatch.setattr(check, "FIRST_ROWS", 12)
    np.savez(tmp_path / "rows.npz", **arrays)
    found = check_spec(PLAIN.replace("csv:rows.csv", "npz:rows.npz"), tmp_path)
    assert message in found
    assert bool(message) == bool(found)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (pa.array([0, 1] * 8), ""),
        (pa.array([[0, 1]] * 16), "holds lists, input 'label'"),
        (pa.array(["a", "b"] * 8), "'a' is not a number"),
        (pa.array([5] * 16), "5 is outside 0-1"),
        (pa.array([None, 1] * 8), "row 0 is null"),
    ],
)
def test_a_parquet_file_that_does_not_fit(label, message, tmp_path):
    columns = {"a": pa.array([1.0] * 16), "b": pa.array([2] * 16), "label": label}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    spec = PLAIN.replace(
        'source: "csv:rows.csv"\n',
        'source: "parquet:rows.parquet"\n    columns: {x: [a, b]}\n',
    ).replace("csv:rows.csv", "parquet:rows.parquet")
    found = check_spec(spec, tmp_path)
    assert message in found
    assert bool(message) == bool(found)


PYTHON = PLAIN.replace("csv:rows.csv", "python:made:rows")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("yield from [{'x': [1, 2], 'label': 3}]", "3 is outside 0-1"),
        ("yield from [{'x': [1, 2, 3], 'label': 1}]", "'x', row 0, has shape [n, 3]"),
        ("return {'x': [[1, 2]] * 16, 'label': [1] * 15}", "different numbers of rows"),
        ("while True: yield {'x': [1, 2], 'label': 1}", ""),
        ("return Late()", "3 is outside 0-1"),
    ],
)
def test_the_first_rows_of_a_function_are_checked(body, message, tmp_path):
    (tmp_path / "made.py").write_text(
        "class Late:\n"
        "    def __len__(self): return 1 << 60\n"
        "    def __getitem__(self, i): return {'x': [1, 2], 'label': 3}\n"
        f"def rows():\n    {body}\n"
    )
    found = check_spec(PYTHON, tmp_path)
    assert message in found
    assert bool(message) == bool(found)
    assert check_spec(PYTHON, tmp_path, code=False) == ""


def test_train_and_launch_find_it_before_they_start_anything(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "m.yaml").write_text(SPEC)
    monkeypatch.chdir(tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("started")

    monkeypatch.setattr(launch_module, "launch_processes", refuse)
    message = "m.yaml:7:14: csv:rows.csv: there is no such file"
    placer.compile("m.yaml", "build")
    with pytest.raises(DataError, match=message):
        placer.launch("build", progress=False)
    with pytest.raises(DataError, match=message):
        placer.launch("build", in_process=True)
    for line in ("launch build", "train m.yaml", "check m.yaml"):
        with pytest.raises(SystemExit) as ended:
            main(line.split())
        assert ended.value.code == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    with pytest.raises(SystemExit) as ended:
        main(["check", "m.yaml", "--no-data"])
    assert ended.value.code == 0
