"""Data that does not fit a spec is found before a process starts, at its position."""

from __future__ import annotations

import errno
import gzip
import os
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyarrow.csv import write_csv

import placer
from placer.command.check import check_command
from placer.command.cli import main
from placer.command.run import run_command
from placer.compiler.driver import compile_in_memory
from placer.errors import DataError, PlacerError, RunError
from placer.launcher import launch as launch_module
from placer.launcher.data_check import check_data
from placer.readers import check, csv_blocks, window_advice
from placer.runtime.process import entry_point
from placer.runtime.process.threads import run_in_threads

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
    except PlacerError as error:
        return str(error).removeprefix(f"{folder}/")
    return ""


@pytest.mark.parametrize(
    ("old", "new", "rows", "at", "message"),
    [
        ("rows.csv", "row.csv", CSV, "7:14", "csv:row.csv: there is no such file"),
        ("rows.csv", ".", CSV, "7:14", "csv:. cannot be read: Is a directory"),
        ("[a, b]", "[a, c]", CSV, "10:10", "csv:rows.csv has no column 'c' for input"),
        ("[a, b]", '"z*"', CSV, "10:11", "csv:rows.csv has no column 'z*' for"),
        ('"no", "yes"', '"no"', CSV, "13:16", "'yes' is not in the vocabulary"),
        ('"yes"]', '"x", "yes"]', CSV, "4:10", "2 is outside 0-1"),
        ("x: [a, b]", "x: [a, f]\n    features: {f: {log1p: c}}", CSV, "11:27", "no column 'c' for feature 'f'"),
        ("x: [a, b]", "x: [a, f]\n    features: {f: {days: b}}", CSV, "10:10", "'2' is not a date"),
        ("batch: 8", "batch: 17", CSV, "8:12", "16 rows do not fill one batch of 17"),
        ("", "", CSV.replace("3,4", "3,four"), "10:10", "'four' is not a number"),
        ("", "", CSV + "1,2\n", "7:14", "line 18 has 2 cells"),
        ("", "", "", "7:14", "csv:rows.csv is empty"),
    ],
)  # fmt: skip
def test_a_csv_file_that_does_not_fit(old, new, rows, at, message, tmp_path):
    (tmp_path / "rows.csv").write_text(rows)
    found = check_spec(SPEC.replace(old, new, 1), tmp_path)
    assert found.startswith(f"m.yaml:{at}: ")
    assert message in found.splitlines()[0]
    assert "^" in found.splitlines()[2]


VOCABULARY = '    csv:\n      vocabulary:\n        label: ["no", "yes"]\n'
LOSS = """\
      - {name: logits, op: fc, in: x, size: 2}
      - {name: loss, op: softmax_cross_entropy, in: [logits, label]}
"""
BINARY = """\
      - {name: logits, op: fc, in: x, size: 1}
      - {name: score, op: reshape, in: logits, shape: [batch]}
      - {name: loss, op: sigmoid_cross_entropy, in: [score, label]}
"""
LABEL_HINT = "remove these rows, or add the word to the vocabulary"


@pytest.mark.parametrize(
    ("old", "new", "rows", "message", "hint"),
    [
        ("x: 1", "x: 1", CSV + "1,2,maybe\n", "'maybe' is not", f"{LABEL_HINT} and raise the size of op 'logits' from 2 to 3"),
        ("x: 1", "x: 1", CSV + "1,2,\n", "'' is not", f"{LABEL_HINT} and raise the size of op 'logits' from 2 to 3"),
        ("size: 2", "size: 3", CSV + "1,2,yess\n", "'yess' is not", f"{LABEL_HINT}; did you mean 'yes'?"),
        ('"yes"]', '"yes", maybe]', CSV + "1,2,maybe\n", "2 is outside 0-1", "input 'label' goes to op 'loss' (softmax_cross_entropy), which takes 0 to 1; for more classes, raise the size of op 'logits', which is 2"),
        (VOCABULARY, "", "a,b,label\n" + "1,2,1\n" * 8 + "1,2,\n", "the cell is empty", "input 'label' is a label: remove the rows without a label"),
        (LOSS, BINARY, CSV + "1,2,maybe\n", "'maybe' is not", "remove these rows: input 'label' goes to op 'loss' (sigmoid_cross_entropy), which takes 0 to 1"),
    ],
)  # fmt: skip
def test_a_hint_about_a_label_makes_no_class_of_unknown_words(
    old, new, rows, message, hint, tmp_path
):
    (tmp_path / "rows.csv").write_text(rows)
    found = check_spec(SPEC.replace(old, new, 1), tmp_path)
    assert message in found.splitlines()[0]
    assert found.splitlines()[-1] == f"  hint: {hint}"


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
    checked = CliRunner().invoke(check_command, [str(tmp_path / "m.yaml")])
    assert checked.output.endswith(
        " per step; checked the first 4 rows of csv:rows.csv\n"
    )
    (tmp_path / "rows.csv").write_text(CSV.replace("yes", "maybe"))
    assert "'maybe' is not in the vocabulary" in check_spec(SPEC, tmp_path)


PLAIN = SPEC.replace(
    '    columns:\n      x: [a, b]\n    csv:\n      vocabulary:\n        label: ["no", "yes"]\n',
    "",
)  # fmt: skip


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_the_columns_of_all_files_of_a_large_set_are_checked(
    kind, tmp_path, monkeypatch
):
    monkeypatch.setattr(check, "WHOLE_NBYTES", 0)
    monkeypatch.setattr(check, "FIRST_ROWS", 12)
    monkeypatch.setattr(window_advice, "ADVISED_WINDOW", 20)
    monkeypatch.setattr(window_advice, "SLOW_SECONDS", 0)
    monkeypatch.setattr(window_advice, "FEW_LANES", 1)
    spec = PLAIN.replace("csv:rows.csv", f"{kind}:rows*").replace(", 2]", ", 1]", 1)
    (tmp_path / "m.yaml").write_text(spec)
    arrays = {"x": np.ones((16, 1)), "label": np.ones(16, int)}

    def write(path):
        if kind == "npz":
            np.savez(path, **arrays)
            return
        table = pa.table({name: array.ravel() for name, array in arrays.items()})
        if kind == "parquet":
            pq.write_table(table, path)
        else:
            write_csv(table, path)

    def checked():
        return CliRunner().invoke(check_command, [str(tmp_path / "m.yaml")])

    for i in range(3):
        write(tmp_path / f"rows{i}.{kind}")
    ok, *advice = checked().stdout.splitlines()
    assert ok.endswith(f"rows of {kind}:rows*, and the columns of its 3 files")
    assert len(advice) == (kind == "parquet")
    for line in advice:
        assert "MB for all 48 rows before the first step" in line
    arrays["y"] = arrays.pop("x")
    write(tmp_path / f"rows2.{kind}")
    assert f"{kind}:rows2.{kind} has no column 'x'" in str(checked().exception)
    assert check_spec(spec, tmp_path) == ""  # only the files of the first rows


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
        (pa.array([[0, 1]] * 16), "holds lists, but input 'label'"),
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


NUMBERS = "a,b,label\n" + "1,2,1\n3,4,0\n" * 8
WINDOW = "{window: 8, lanes: 4}"
ARRAYS = {"x": np.ones((16, 2)), "label": np.zeros(16)}
GZIP = gzip.compress(NUMBERS.encode(), mtime=0)
MODULE = "python:made:rows"


def made(body: str) -> str:
    return f"def rows():\n    {body}\n"


@pytest.mark.parametrize(
    ("source", "more", "content", "at", "message", "hint"),
    [
        ("csv:t.csv", "", NUMBERS.replace(",", ";"), "9:18", "no column 'a'", 'csv: {delimiter: ";"}'),
        ("csv:t.csv", "", NUMBERS.replace(",", "\t"), "9:18", "no column 'a'", 'csv: {delimiter: "\\t"}'),
        ("csv:t.csv", "", "1,2,0\n" * 16, "9:18", "no column 'a'", "csv: {header: [NAME, …]}"),
        ("csv:t.csv", "", "0,1,label\n" + "1,2,0\n" * 16, "9:18", "no column 'a'", "one of: 0, 1, label"),
        ("csv:t.csv", "", "\n  \n", "7:14", "csv:t.csv is empty", "first row names"),
        ("csv:t.csv", "", NUMBERS.replace("1,2,1", "1,2,0.5"), "4:10", "not a whole number", "'loss' (softmax_cross_entropy), which takes 0 to 1"),
        ("csv:t.csv", "", NUMBERS.replace("b", "a"), "9:18", "several columns named 'a'", "rename one"),
        ("csv:t.csv", "", NUMBERS.replace("1,2", "31/12/2020,2"), "9:18", "'31/12/2020' is not a number", "write dates as 2024-05-01"),
        ("csv:t.csv", "", NUMBERS.replace("1,2", '"1,500",2'), "9:18", "'1,500' is not a number", "like 1234.5"),
        ("csv:t.csv", "", NUMBERS.replace("1,2", "15 %,2"), "9:18", "'15 %' is not a number", "like 1234.5"),
        ("csv:t.csv", "", NUMBERS.replace("1,2", "inf,2"), "9:18", "'inf' is not a finite number", 'missing_values: {a: ["inf"]}'),
        ("csv:t.csv", "", NUMBERS.encode("utf-16"), "7:14", "line 1 is not UTF-8", "save the file as UTF-8"),
        ("csv:t.csv", "", NUMBERS.encode("utf-16-le"), "7:14", "line 1 has NUL characters", "save the file as UTF-8"),
        ("csv:t.csv", "", GZIP, "7:14", "line 1 is not UTF-8", "ends in .csv.gz"),
        ("csv:t.csv", "", b"PK\x03\x04" + bytes(9), "7:14", "NUL characters", "an Excel file"),
        ("csv:t.csv", "", "# made\n" + NUMBERS, "9:18", "no column 'a'", 'csv: {comment: "#"}'),
        ("csv:t.csv", "", "My table\n" + NUMBERS, "9:18", "no column 'a'", "one of: My table"),
        ("csv:t.csv", "split: test", "a,b,label\n1,2,0\n", "10:12", "none of them is in the split 'test'", "leave 'split' out"),
        ("csv:t.csv", "", NUMBERS.replace("1,2", "1e39,2"), "9:18", "'1e39' does not fit float32", "x: float64[batch, 2], and write precision: float64"),
        ("csv:$HOME/t.csv", "", NUMBERS, "7:14", "no such file", f"write csv:{Path.home()}/t.csv"),
        ("csv:https://t/t.csv", "", NUMBERS, "7:14", "no such file", "download it"),
        (MODULE, "", made("return []"), "7:14", "has no rows", "at least one row"),
        (MODULE, "", made("return {}"), "3:6", "no column 'x'", "the source has no columns"),
        (MODULE, "", made("import pyarrow; return pyarrow.table({'x': [1]})"), "7:14", "returned a Table", "return a dict with the array of each column"),
        ("csv:u*.csv", "", NUMBERS, "7:14", "no file matches", "hidden files and files '*.tmp' do not count"),
        ("csv:~/t.csv", "", NUMBERS, "7:14", "no such file", f"write csv:{Path.home()}/t.csv"),
        ("csv:.", "", NUMBERS, "7:14", "Is a directory", "name one file in the folder"),
        ("csv:t.csv.gz", f"shuffle: {WINDOW}", GZIP, "10:14", "is compressed", "decompress the file"),
        ("npz:t.csv", "", NUMBERS, "7:14", "npz:t.csv is not an npz file", "numpy.savez"),
        ("npz:t.npz", "", {"x": np.array([[1, 2]] * 16, object)}, "3:6", "column 'x' cannot be read: Object", "array.astype"),
        ("npz:t.npz", "", {"label": np.full(16, 0.5)}, "4:10", "0.5 does not fit int32", "'loss' (softmax_cross_entropy), which takes 0 to 1"),
        ("npz:t.npz", "", {"label": np.eye(2)[[0, 1] * 8]}, "4:10", "has shape [n, 2]", "numpy.argmax(label, axis=-1)"),
        (MODULE, "", made("pass"), "7:14", "returned None", "yield a dict for each row"),
        (MODULE, "", made("return 7"), "7:14", "returned a int", "yield a dict for each row"),
        (MODULE, "", made("raise ValueError('bad')"), "7:14", "failed at row 0: ValueError: bad", "see made.py, line 2"),
        (MODULE, "", made("yield {'x': [1, 2], 'label': 'yes'}"), "4:10", "'yes' is not a number", "vocabulary"),
        (MODULE, "", made("yield {'x': [1, 2, 3], 'label': 1}"), "3:6", "has shape [n, 3]", "x: float32[batch, 3]"),
        (MODULE, "", made("yield {'x': [1, 2], 'label': None}"), "4:10", "row 0: the value is missing", "is a label: remove the rows without a label"),
        (MODULE, "", made("yield {'x': object(), 'label': 1}"), "3:6", "'x' holds object", "float32[batch, 2]"),
        (MODULE, "", made("yield {'x': [[1, 2]] * 8, 'label': [1] * 8}"), "7:14", "is a batch of 8 rows", "one row at a time"),
        (MODULE, "columns: {x: [a, b]}", made("yield {'a': 1, 'b': [2], 'label': 1}"), "9:18", "'b', row 0, has the shape [1]", "one number"),
        (MODULE, "columns: {x: [f, b]}\n    features: {f: {log1p: a}}", made("yield {'a': [1], 'b': 2, 'label': 1}"), "9:18", "list is not one value", "a text or a number"),
        (MODULE, "python: {vocabulary: {label: ['no', 'yes']}}", made("yield {'x': [1, 2], 'label': 'maybe'}"), "9:34", "'maybe' is not in the vocabulary", "raise the size of op 'logits' from 2 to 3"),
        (MODULE, "python: {vocabulary: {'l*': ['no', 'yes']}}", made("yield {'x': [1, 2], 'label': 'maybe'}"), "9:26", "'maybe' is not in the vocabulary", "raise the size of op 'logits' from 2 to 3"),
    ],
)  # fmt: skip
def test_a_mistake_is_found_with_its_position_and_what_to_do(
    source, more, content, at, message, hint, tmp_path
):
    if source == MODULE:
        (tmp_path / "made.py").write_text(content)
    elif isinstance(content, dict):
        np.savez(tmp_path / "t.npz", **ARRAYS | content)
    else:
        name = "t.csv.gz" if source.endswith("gz") else "t.csv"
        text = content.encode() if isinstance(content, str) else content
        (tmp_path / name).write_bytes(text)
    columns = "columns: {x: [a, b]}\n    " if source.startswith("csv:") else ""
    train = f'"{source}"\n    batch: 8\n    {columns}{more}\n'
    spec = PLAIN.replace('"csv:rows.csv"\n    batch: 8\n', train, 1)
    spec = spec.replace('  eval: {source: "csv:rows.csv"}\n', "")
    found = check_spec(spec, tmp_path)
    assert found.startswith(f"m.yaml:{at}: ")
    assert message in found.splitlines()[0]
    assert hint in found.partition("  hint: ")[2]


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(csv_blocks, "open_regular", refuse)
    found = check_spec(SPEC, tmp_path)
    assert "m.yaml:7:14: csv:rows.csv cannot be read: Permission denied" in found
    assert (
        "hint: give the user of this process permission to read the file and its folder"
        in found
    )


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


PLACED = SPEC.replace("count: 1}", "count: 1}, ps: {count: 1}").replace(
    "0.1, place: /node:worker/cpu", "0.1, place: /node:ps/cpu"
)


@pytest.mark.parametrize(
    ("node", "more", "is_checked"),
    [
        ("worker:0", (), True),
        ("ps:0", (), False),  # it reads nothing
        ("worker:0", ("--events", "events.jsonl"), False),  # for what has started it
    ],
)
def test_a_node_that_is_started_by_hand_checks_its_own_data_before_it_joins(
    node, more, is_checked, tmp_path, monkeypatch
):
    def start(*_: object, **__: object) -> None:
        raise RunError("started")

    monkeypatch.setattr(entry_point, "run", start)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.yaml").write_text(PLACED)
    placer.compile("m.yaml", "build")
    error = CliRunner().invoke(run_command, ["build", "--node", node, *more]).exception
    expected = (
        "m.yaml:7:14: csv:rows.csv: there is no such file" if is_checked else "started"
    )
    assert str(error).splitlines()[0] == expected


@pytest.mark.parametrize(
    ("old", "new", "at", "message"),
    [
        ("", "", "7:14", "csv:rows.csv: there is no such file"),
        ("x: [a, b]", "x: [a, c]", "10:10", "csv:rows.csv has no column 'c' for"),
        ('"no", "yes"', '"no"', "13:16", "'yes' is not in the vocabulary"),
        ('"csv:rows.csv"}', '"csv:rows.csv", batch: 20, remainder: drop}', "14:41", "16 rows do not fill one batch of 20"),
        ('eval: {source: "csv:rows.csv"}', 'eval: {source: "python:made:rows"}', "14:19", "reader python:made:rows failed at row 0: ValueError: bad"),
    ],
)  # fmt: skip
def test_a_node_that_finds_the_mistake_itself_says_its_position(
    old, new, at, message, tmp_path
):
    """Of data that is on other machines than the launcher."""
    if "no such file" not in message:
        (tmp_path / "rows.csv").write_text(CSV)
    (tmp_path / "made.py").write_text(made("raise ValueError('bad')"))
    (tmp_path / "m.yaml").write_text(PLACED.replace(old, new))
    placer.compile(tmp_path / "m.yaml", tmp_path / "build")
    with pytest.raises(PlacerError) as caught:
        run_in_threads(tmp_path / "build", watch=lambda event: None)
    assert str(caught.value).startswith(f"m.yaml:{at}: ")
    assert message in str(caught.value)


def test_a_stream_is_checked_by_its_first_file_and_needs_none(
    tmp_path, monkeypatch, capsys
):
    stream = SPEC.replace(
        '"csv:rows.csv"', '"csv:day-*.csv"\n    stream: {files: 1}', 1
    )
    spec = stream.replace('  eval: {source: "csv:rows.csv"}\n', "")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.yaml").write_text(spec)

    def check(code: int) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["check", "m.yaml"])
        assert ended.value.code == code
        return capsys.readouterr().err

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert "warning: csv:day-*.csv: no file matches; a run waits" in check(0)
    rows = "a,b,label\n1,2,yes\n"
    (tmp_path / "day-10.csv").write_text("c\n1\n")
    (tmp_path / "day-9.csv").write_text(rows)  # less than a batch
    assert check(0) == ""
    (tmp_path / "day-8.csv").write_text(rows.replace("b,", "c,"))
    assert "m.yaml:11:10: csv:day-8.csv has no column 'b' for input 'x'" in check(2)
    # A run checks the files when their pass begins.
    assert check_spec(spec, tmp_path) == ""

    predict = f"{spec}predict: {{outputs: [logits]}}\n"
    (tmp_path / "m.yaml").write_text(predict)
    plan = compile_in_memory(Path("m.yaml")).plan
    assert plan.train.stream is not None
    assert plan.prediction.stream is None

    for words, says in {
        "--until now --passes 2": "cannot be combined",
        "--skip-pass": "needs 'resume'",
        "--resume . --new-rows": "a stream goes on with new files",
    }.items():
        with pytest.raises(SystemExit) as ended:
            main(["train", "m.yaml", *words.split()])
        assert ended.value.code == 2
        assert says in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
