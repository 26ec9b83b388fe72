"""Folders whose names are not UTF-8: an error names the folder, not the model."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import placer
from placer.command.cli import main
from placer.errors import BuildError, PlacerError, SpecError
from placer.system.resources import find_file

FOLDER = os.fsdecode(b"caf\xe9")
SHOWN = "caf\\xe9"


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder with specs and builds, also in a folder that is not UTF-8."""
    monkeypatch.chdir(tmp_path)
    digits = find_file("specs/digits.yaml").read_text()
    Path("digits.yaml").write_text(digits)
    Path(FOLDER).mkdir()
    for file in ("digits.yaml", "model.py", "rows.csv"):
        Path(FOLDER, file).write_text(digits if file == "digits.yaml" else "")
    placer.compile("digits.yaml", "build")
    shutil.copytree("build", Path(FOLDER, "build"))


@pytest.mark.parametrize(
    "words",
    [
        ("check", f"{FOLDER}/digits.yaml"),
        ("compile", f"{FOLDER}/digits.yaml", "--out", "b"),
        ("train", f"{FOLDER}/digits.yaml"),
        ("train", f"{FOLDER}/model.py:build"),
        ("show", f"{FOLDER}/digits.yaml"),
        ("compile", "digits.yaml", "--out", f"{FOLDER}/b"),
        ("train", "digits.yaml", "--out", f"{FOLDER}/run"),
        ("launch", f"{FOLDER}/build"),
        ("show", f"{FOLDER}/build"),
        ("predict", "build", "--params", "build", "--out", f"{FOLDER}/o.csv"),
        (
            *("predict", "build", "--params", "build", "--out", "o.csv"),
            *("--in", f"{FOLDER}/rows.csv"),
        ),
        ("export", "build", "--params", "build", "--out", f"{FOLDER}/model"),
    ],
    ids=lambda words: " ".join(words).replace(FOLDER, "FOLDER"),
)
def test_commands_name_the_path(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(Path().rglob("*"))
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert f"{SHOWN}/" in error
    assert "is not UTF-8" in error
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: placer.compile("digits.yaml", "../b"), SpecError),
        (lambda: placer.compile("../digits.yaml", "b"), BuildError),
        (lambda: placer.launch("build"), BuildError),
    ],
)
def test_the_working_folder_counts(
    call: Callable[[], object],
    error: type[PlacerError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(FOLDER)
    with pytest.raises(error, match=r"/caf\\xe9/.* is not UTF-8"):
        call()
