"""The nearest path to one that does not exist, and the errors that name it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import placer
from placer.checkpoint.choice import candidates
from placer.command.cli import main
from placer.errors import BuildError, DataError, PlacerError, SpecError
from placer.readers.file_errors import file_errors
from placer.runtime.saving.parameter_files import load
from placer.system.files.nearest_path import nearest_path


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder with a spec, builds, a run, rows and parameters."""
    monkeypatch.chdir(tmp_path)
    checkpoint = "runs/wide-1/checkpoints/step-000011"
    for folder in (
        *("specs", "build", "runs/digits-1/build", "empty", "saved"),
        checkpoint,
    ):
        Path(folder).mkdir(parents=True)
    for file in (
        "specs/digits.yaml",
        "specs/model.py",
        "specs/rows.csv",
        "build/plan.json",
        "runs/digits-1/build/plan.json",
        f"{checkpoint}/manifest.json",
        "weights.safetensors",
    ):
        Path(file).write_text("")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("spec/digit.yaml", "specs/digits.yaml"),
        ("specs/digits.yml", "specs/digits.yaml"),
        ("Specs/../specs/DIGITS.yaml", "specs/../specs/digits.yaml"),
        ("./spec/digits.yaml", "specs/digits.yaml"),
        ("specs/other.txt", None),
        ("specs/digits.yaml", None),
        ("specs/nosuch.yaml", None),
        ("far/away/digits.yaml", None),
        ("builds", None),
        ("", None),
        ("specs/" + "d" * 300, None),
    ],
)
def test_each_part_is_the_nearest_entry(path: str, expected: str | None) -> None:
    assert nearest_path(path) == expected
    absolute = nearest_path(Path.cwd() / path)
    assert absolute == (expected and str(Path.cwd() / expected))


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("train spec/digit.yaml", "specs/digits.yaml"),
        ("check specs/digit.yaml", "specs/digits.yaml"),
        ("show specs/digit.yaml", "specs/digits.yaml"),
        ("compile specs/modle.py:build --out b", "specs/model.py"),
        ("launch biuld", "build"),
        ("launch run/digits-1", "runs/digits-1/build"),
        ("launch digits-2", "runs/digits-1/build"),
        ("explain digits", "runs/digits-1"),
        ("show digits.yaml", "specs/digits.yaml"),
        ("train digit.yml", "specs/digits.yaml"),
        ("launch runs/digits-1", "runs/digits-1/build"),
        ("export build --out e --params weight.safetensors", "weights.safetensors"),
        ("predict build --params weight.safetensors --out o", "weights.safetensors"),
        ("checkpoints save", "saved"),
        ("checkpoints wide-2", "runs/wide-1/checkpoints"),
        ("predict build --params wide-1 --out o", "runs/wide-1/checkpoints"),
        ("train specs/digits.yaml --init-params wide-1", "runs/wide-1/checkpoints"),
        ("init specs/row.csv", "specs/rows.csv"),
    ],
)
def test_commands_name_the_nearest_path(
    words: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"did you mean '{hint}'?\n")


@pytest.mark.parametrize(
    ("command", "listed"),
    [
        ("launch", "build, runs/digits-1/build"),
        ("show", "build, runs/digits-1, specs/digits.yaml, specs/model.py"),
    ],
)
def test_commands_list_the_builds(
    command: str, listed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "nosuch"])
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert message.endswith(f"does not exist; one of: {listed}\n")


@pytest.mark.parametrize(
    ("call", "error", "hint"),
    [
        (
            lambda: placer.compile("spec/digit.yaml", "b"),
            SpecError,
            "specs/digits.yaml",
        ),
        (lambda: placer.train("specs/digit.yaml"), SpecError, "specs/digits.yaml"),
        (lambda: placer.train("digits.yaml"), SpecError, "specs/digits.yaml"),
        (lambda: placer.train("modl.py:f"), SpecError, "specs/model.py"),
        (lambda: placer.launch("digits-1"), BuildError, "runs/digits-1/build"),
        (lambda: placer.train("specs/modl.py:f"), SpecError, "specs/model.py"),
        (lambda: placer.launch("biuld"), BuildError, "build"),
        (lambda: placer.launch("runs/digits-1"), BuildError, "runs/digits-1/build"),
        (lambda: load(Path("weight.safetensors")), DataError, "weights.safetensors"),
        (lambda: [*candidates(Path("save"), print)], PlacerError, "saved"),
        (
            lambda: [*candidates(Path("wide-1"), print)],
            PlacerError,
            "runs/wide-1/checkpoints",
        ),
    ],
)
def test_functions_name_the_nearest_path(
    call: Callable[[], object], error: type[Exception], hint: str
) -> None:
    with pytest.raises(error, match=re.escape(f"hint: did you mean '{hint}'?")):
        call()


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("row.csv", "did you mean 'csv:rows.csv'?"),
        (
            "none",
            "/specs/none'; relative paths start at the spec's folder, or at the folder of --data",
        ),
    ],
)
def test_a_source_of_rows_is_named_as_in_the_spec(path: str, hint: str) -> None:
    source = f"csv:{path}"
    with pytest.raises(DataError) as raised, file_errors(source, "damaged"):
        np.load(Path("specs").absolute() / path)
    assert (raised.value.hint or "").endswith(hint)
