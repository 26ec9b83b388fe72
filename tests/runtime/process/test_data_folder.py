"""Modules of a spec find the files beside the spec, wherever the build is."""

from __future__ import annotations

from pathlib import Path

import pytest

import placer

SPEC = """\
nodes: {worker: {count: 1}}
inputs: {x: "float32[batch, 1]"}
data: {train: {source: "python:rows:rows", batch: 4}}
graph:
  - {name: h, op: fc, in: x, size: 1}
  - {name: s, op: call, fn: "scaled:scaled", in: h, batch: rows, out: "float32[batch, 1]"}
  - {name: loss, op: reduce_mean, in: s}
train: {minimize: loss, optimizer: {op: sgd, learning_rate: 0.1, place: /node:worker}}
"""
SCALED = """\
import placer

SCALE = float((placer.data_folder() / "scale.txt").read_text())

def scaled(params, state, x, rng, training):
    return SCALE * x, state
"""
ROWS = """\
import near

def rows():
    for line in near.text().split():
        yield {"x": [float(line)]}
"""
NEAR = """\
import placer

def text():
    return (placer.data_folder() / "rows.txt").read_text()
"""


def compile_with(folder: Path, **files: str) -> Path:
    """Compile a spec with these files beside it, into another folder."""
    (folder / "spec").mkdir()
    for name, text in {"model.yaml": SPEC, "scaled.py": SCALED, **files}.items():
        (folder / "spec" / name).write_text(text)
    (folder / "spec/scale.txt").write_text("2")
    placer.compile(folder / "spec/model.yaml", folder / "builds/one")
    return folder / "builds/one"


def test_a_reader_its_imports_and_a_call_find_their_files(tmp_path, monkeypatch):
    files = {"rows.py": ROWS, "near.py": NEAR, "rows.txt": "1 2 3 4"}
    build = compile_with(tmp_path, **files)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert placer.launch(build, in_process=True).steps == 1


def test_the_data_folder_of_a_linked_spec_is_that_of_the_link(tmp_path):
    files = {"rows.py": ROWS, "near.py": NEAR, "rows.txt": "1 2 3 4"}
    build = compile_with(tmp_path, **files)
    spec = tmp_path / "spec/model.yaml"
    (tmp_path / "other").mkdir()
    spec.rename(tmp_path / "other/model.yaml")
    spec.symlink_to(tmp_path / "other/model.yaml")
    assert placer.launch(build, in_process=True).steps == 1


def test_the_error_for_a_missing_file_mentions_the_data_folder(tmp_path):
    rows = 'def rows():\n    yield {"x": [len(open("rows.txt").read())]}\n'
    build = compile_with(tmp_path, **{"rows.py": rows})
    with pytest.raises(placer.RunError) as caught:
        placer.launch(build, in_process=True)
    assert "FileNotFoundError" in caught.value.message
    assert caught.value.hint == (
        "see rows.py, line 2; placer.data_folder() is the folder of the spec"
    )


def test_outside_a_run_the_data_folder_is_that_of_the_calling_file():
    assert placer.data_folder() == Path(__file__).resolve().parent


def test_in_a_notebook_the_data_folder_is_that_of_the_notebook(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"placer": placer}
    text = "found = placer.data_folder()"
    cell = str(tmp_path / "ipykernel_4800/2546692155.py")  # as ipykernel names it
    exec(compile(text, cell, "exec"), names)
    assert names["found"] == tmp_path
