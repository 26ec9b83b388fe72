"""`placer train`, and `--set` on the commands that read a spec."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import write_checkpoint
from support.small_models import two_layers

import placer
from placer.command.cli import main
from placer.errors import PlacerError
from placer.plan.plan import read_plan
from placer.system.resources import find_file

DIGITS = find_file("specs/digits.yaml")
TRAIN = ["train", str(DIGITS), "--in-process", "--single-process", "--steps", "1"]
RunCommand = Callable[..., int]


@pytest.fixture
def run_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunCommand:
    """Run a command line in an empty folder, and return its exit status."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert isinstance(ended.value.code, int)
        return ended.value.code

    return run


def test_each_run_has_a_numbered_folder_with_its_build(
    run_command: RunCommand, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs" / "digits-7").mkdir(parents=True)
    (tmp_path / "runs" / "digits-deeper-9").mkdir()
    assert run_command(*TRAIN, "--set", "data.train.batch=64") == 0
    out = capsys.readouterr().out
    assert "digits: the run's folder is runs/digits-8\n" in out
    assert "1 step" in out
    assert re.search(r"^  best +loss \S+  accuracy \S+  \(step 1\)$", out, re.M)
    plan = read_plan(tmp_path / "runs" / "digits-8" / "build")
    assert (plan.train.batch, len(plan.nodes)) == (64, 1)


def test_the_folder_of_a_run_without_a_step_is_removed_and_named(
    run_command: RunCommand,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise PlacerError("no node started")

    monkeypatch.setattr("placer.launcher.launch.launch_checked", fail)
    assert run_command(*TRAIN) != 0
    error = capsys.readouterr().err
    assert "no step was done, so the folder runs/digits-1 was removed" in error
    assert not Path("runs/digits-1").exists()


@pytest.mark.parametrize("logs", [[], ["--logs", "kept"]])
def test_a_run_names_its_logs_at_the_start_if_it_keeps_them(
    run_command: RunCommand,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    logs: list[str],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise PlacerError("no node started")

    monkeypatch.setattr("placer.launcher.launch.launch_processes", fail)
    train = [word for word in TRAIN if word != "--in-process"]
    assert run_command(*train, *logs) != 0
    captured = capsys.readouterr()
    assert "no node started" in captured.err
    assert ("digits: logs in kept\n" in captured.out) == bool(logs)
    assert captured.out.count("logs in") == bool(logs)


def test_a_named_folder_may_hold_other_files_of_the_run(
    run_command: RunCommand, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--out", "mine", "--history", "mine/history.jsonl", "--json"]
    assert run_command(*TRAIN, *files) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["steps"] == 1
    assert "the run's folder is mine" in captured.err
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == [
        "build",
        "command.json",
        "events.jsonl",
        "history.jsonl",
        "result.json",
    ]
    assert len((tmp_path / "mine" / "history.jsonl").read_text().splitlines()) == 1
    assert run_command(*TRAIN, "--out", "mine") == 2
    assert "the folder 'mine' is not empty" in capsys.readouterr().err


def test_files_that_a_run_keeps_are_not_overwritten(
    run_command: RunCommand, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(*TRAIN, "--out", "first", "--json", "--quiet") == 0
    quiet = capsys.readouterr()
    assert json.loads(quiet.out)["steps"] == 1
    assert quiet.err == ""
    before = (tmp_path / "first" / "history.jsonl").read_bytes()
    (tmp_path / "link").symlink_to("first/result.json")
    launch = ["launch", "first/build", "--in-process", "--steps", "1"]
    train = [*TRAIN, "--out", "second"]
    for command, option, file in (
        (launch, "--trace", "first/events.jsonl"),
        (launch, "--history", "first/history.jsonl"),
        (launch, "--history", "link"),
        (train, "--save-params", "second/history.jsonl"),
        (train, "--trace", "second/command.json"),
    ):
        assert run_command(*command, option, file) == 2
        message = f"cannot write '{file}': each run keeps a file with this name"
        assert message in capsys.readouterr().err
    assert (tmp_path / "first" / "history.jsonl").read_bytes() == before
    assert not (tmp_path / "second").exists()


def test_folders_that_cannot_be_written_are_found_before_the_run(
    run_command: RunCommand, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    train = [each for each in TRAIN if each != "--in-process"]
    for option, message in (
        ("--checkpoint", "file' is not a folder"),
        ("--logs", "file' is not a folder"),
        ("--tensorboard", "'file/folder' for TensorBoard: Not a directory"),
    ):
        assert run_command(*train, option, "file/folder") == 2
        assert message in capsys.readouterr().err
        assert not [*tmp_path.glob("runs/*")], option


def test_the_folder_of_a_run_is_no_folder_of_checkpoints(
    run_command: RunCommand, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """That is found before nodes are started, and before the new run has a folder."""
    (tmp_path / "old" / "checkpoints").mkdir(parents=True)
    write_checkpoint(tmp_path / "old" / "checkpoints", 10, 1)
    train = [each for each in TRAIN if each != "--in-process"]
    assert run_command(*train, "--resume", "old") == 2
    assert "did you mean 'old/checkpoints'?" in capsys.readouterr().err
    assert not [*tmp_path.glob("runs/*")]


@pytest.mark.parametrize(
    "words",
    [["--history", "nowhere/file"], ["--set", "train.epohcs=3"]],
    ids=lambda words: words[0],
)
def test_a_run_that_cannot_start_leaves_no_folder(
    run_command: RunCommand, tmp_path: Path, words: list[str]
) -> None:
    (tmp_path / "mine").mkdir()
    assert run_command(*TRAIN, *words) == 2
    assert run_command(*TRAIN, *words, "--out", "mine") == 2
    assert run_command(*TRAIN, *words, "--out", "new/a/b") == 2
    # A folder that was there stays, empty.
    assert [*tmp_path.iterdir()] == [tmp_path / "mine"]
    assert not [*(tmp_path / "mine").iterdir()]


@pytest.mark.parametrize(("bad", "is_kept"), [(1, False), (20, True)])
def test_only_a_run_that_has_done_a_step_leaves_a_folder(
    run_command: RunCommand, tmp_path: Path, bad: int, is_kept: bool
) -> None:
    """The rows of one step are not numbers, which is an error with `--debug-nans`."""
    x, y = np.zeros((40, 2), np.float32), np.zeros((40, 4), np.float32)
    x[2 * bad - 1] = np.nan
    np.savez(tmp_path / "rows.npz", x=x, y=y)
    spec = two_layers(nodes="{worker: {count: 1}}", width=2, batch=2)
    spec = spec.replace("batch: 2}", "batch: 2, shuffle: false}")
    (tmp_path / "small.yaml").write_text(spec)
    assert run_command("train", "small.yaml", "--in-process", "--debug-nans") == 1
    kept = ["build", "command.json", "events.jsonl", "history.jsonl", "result.json"]
    found = sorted(each.name for each in tmp_path.glob("runs/small-1/*"))
    assert found == kept * is_kept
    assert (tmp_path / "runs").exists() == is_kept


def test_an_error_of_a_callback_keeps_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refuses(placer.Callback):
        def on_step(self, record: placer.Record) -> None:
            raise PlacerError("my mistake")

    monkeypatch.chdir(tmp_path)
    with pytest.raises(PlacerError, match="my mistake"):
        placer.train(
            DIGITS,
            single_process=True,
            in_process=True,
            steps=100,
            callbacks=[Refuses()],
        )
    assert (tmp_path / "runs" / "digits-1" / "build" / "plan.json").is_file()


def test_python_trains_as_the_command_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options of both are checked before anything is compiled or written."""
    monkeypatch.chdir(tmp_path)
    small: dict[str, Any] = {"single_process": True, "in_process": True, "steps": 1}
    result = placer.train(DIGITS, overrides={"data.train.batch": 64}, **small)
    assert result.steps == 1
    assert result.params["h1.w"].shape == (64, 128)
    plan = read_plan(tmp_path / "runs" / "digits-1" / "build")
    assert (plan.train.batch, len(plan.nodes)) == (64, 1)
    for wrong in (
        {"history": "nowhere/file"},
        {"resume": "nowhere"},
        {"stepps": 3},
        {"callbacks": [placer.Callback]},
        {"overrides": {"train.epohcs": 3}},
        {"resume": ".", "init_params": "x"},
        {"out": "runs/digits-1"},
    ):
        with pytest.raises(PlacerError):
            placer.train(str(DIGITS), **{**small, **wrong})
    assert [each.name for each in (tmp_path / "runs").iterdir()] == ["digits-1"]


@pytest.mark.parametrize("command", ["check", "show", "explain"])
def test_every_command_that_reads_a_spec_sets_keys(
    run_command: RunCommand, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert run_command(command, str(DIGITS), "--set", "train.epochs=3") == 0
    assert run_command(command, str(DIGITS), "--set", "train.epohcs=3") == 2
    assert "  1 | train.epohcs=3\n    |       ^^^^^^\n" in capsys.readouterr().err


def test_the_keys_of_a_build_cannot_be_set(
    run_command: RunCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command("compile", str(DIGITS), "--out", "build") == 0
    assert run_command("show", "build", "--set", "train.epochs=3") == 2
    assert "'build' is a build, whose keys cannot be changed" in capsys.readouterr().err


def test_checkpoints_of_a_spec_are_in_the_folder_that_it_names(
    run_command: RunCommand, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder is relative to that of the spec, and `--resume` continues there."""
    text = DIGITS.read_text().replace(
        "  epochs: 20\n",
        "  epochs: 20\n"
        "  checkpoint: {to: kept, every: 2, best: {metric: accuracy, mode: max}}\n",
    )
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "digits.yaml").write_text(text)
    command = ["train", "mine/digits.yaml", "--in-process"]
    assert run_command(*command, "--steps", "3") == 0
    kept = tmp_path / "mine" / "kept"
    names = sorted(path.name for path in kept.iterdir())
    assert names == ["best", "step-000002", "step-000003"]
    assert run_command(*command, "--steps", "4") == 2
    assert "contains the checkpoints of another run" in capsys.readouterr().err
    assert run_command(*command, "--steps", "4", "--resume", str(kept)) == 0
    captured = capsys.readouterr()
    assert "after step 3" in captured.err
    assert (
        "digits: continues the run in runs/digits-1 and replaces its result; --out DIR"
        " names another folder\n"
    ) in captured.out
    assert run_command("runs", "runs/digits-1") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "--steps 3 continued after step 3 by placer train mine/digits.yaml" in shown
    assert "; options, settings and machine are those of the last command" in shown
    assert (kept / "step-000004").is_dir()


BEST = "train.checkpoint={every: 1h, best: {metric: accuracy, mode: max}}"


def test_checkpoints_without_a_folder_are_beside_the_build(
    run_command: RunCommand, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(*TRAIN, "--set", BEST) == 0
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("  best"))
    found = lines[at : at + 2]
    assert found[0].startswith("  best        loss ")
    assert found[0].endswith("(step 1)")
    assert found[1] == "              is in runs/digits-1/checkpoints/best"
    again = ["launch", "runs/digits-1/build", "--in-process", "--quiet", "--steps"]
    assert run_command(*again, "1") == 0  # the checkpoints of the first run are kept
    assert run_command(*again, "2", "--resume", "runs/digits-1/checkpoints-2") == 0
    run = tmp_path / "runs" / "digits-1"
    assert {path.name for path in run.iterdir() if path.is_dir()} == {
        "build",
        "checkpoints",
        "checkpoints-2",
    }
    assert {path.name for path in (run / "checkpoints-2").glob("step-*")} == {
        "step-000001",
        "step-000002",
    }
