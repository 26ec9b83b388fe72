"""A run ends with commands to try next, which work as they are printed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from placer.command.cli import main
from placer.system.resources import find_file

DIGITS = str(find_file("specs/digits.yaml"))
TRAIN = ("train", DIGITS, "--in-process", "--single-process", "--steps", "2")


def run_command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def printed_commands(text: str) -> list[list[str]]:
    lines = (line for line in text.splitlines() if line.startswith("  placer "))
    return [shlex.split(line)[1:] for line in lines]


def test_the_printed_commands_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    out = "my runs/first"
    assert run_command(*TRAIN, "--out", out, "--checkpoint", "saved") == 0
    text = capsys.readouterr().out
    assert "the run's folder is my runs/first; next:\n" in text
    report, show, predict = printed_commands(text)
    assert report == ["report", out]
    assert show == ["show", f"{out}/build"]
    assert predict[:4] == ["predict", f"{out}/build", "--params", "saved/best"]
    for words in (report, show, [*predict, "--in-process"]):
        assert run_command(*words) == 0
    rows = (tmp_path / out / "predictions.csv").read_text().splitlines()
    assert len(rows) == 1 + 359


def test_without_kept_parameters_a_run_says_how_to_keep_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(*TRAIN) == 0
    text = capsys.readouterr().out
    hint = "  to predict, train with --save-params FILE or --checkpoint DIR"
    assert text.splitlines()[-1] == hint
    assert [words[0] for words in printed_commands(text)] == ["report", "show"]
    build = "runs/digits-1/build"
    launch = ("launch", build, "--in-process", "--steps", "1")
    assert run_command(*launch, "--save-params", "p.safetensors") == 0
    report, _, predict = printed_commands(capsys.readouterr().out)
    assert report == ["report", "runs/digits-2"]
    assert predict[:4] == ["predict", build, "--params", "p.safetensors"]
    assert run_command(*launch, "--quiet") == 0
    quiet = capsys.readouterr().out
    assert quiet.startswith("1 step, ")
    assert not printed_commands(quiet)
