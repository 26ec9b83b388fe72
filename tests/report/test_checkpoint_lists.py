"""`placer checkpoints` lists checkpoints, and shows what one has."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from click.testing import CliRunner
from rich.console import Console
from support.checkpoints import WRITTEN, write_checkpoint

from placer.checkpoint.attempts import AttemptBegun, AttemptFailed, add_attempt
from placer.checkpoint.folder import set_best
from placer.checkpoint.manifest import StreamPosition, Watched
from placer.command.checkpoints import checkpoints_command
from placer.plan.settings.data.stream_pass import PassFile, StreamPass
from placer.report.checkpoints import find_checkpoints, list_view
from placer.report.numbers import format_time

HALVES = ((0, 100), (100, 200))


@pytest.fixture
def kept(tmp_path):
    """A folder with two checkpoints; the first is the best."""
    best = Watched("accuracy", "max", 0.9, step=10, since=1)
    for step, accuracy in ((10, 0.9), (20, 0.8)):
        evaluation = {"loss": "nan", "accuracy": accuracy}
        write_checkpoint(tmp_path, step, step, HALVES, eval=evaluation, best=best)
    set_best(tmp_path, tmp_path / "step-000010")
    return tmp_path


def run(*arguments):
    """Run the command; return its exit status, and the words of each line."""
    done = CliRunner().invoke(checkpoints_command, list(map(str, arguments)))
    return done.exit_code, [line.split("  ") for line in done.stdout.splitlines()]


def words_of(line):
    return [word.strip() for word in line if word.strip()]


def test_a_folder_is_listed_with_a_line_for_each_checkpoint(kept):
    status, lines = run(kept)
    assert status == 0
    head, last, first = map(words_of, lines)
    columns = ["checkpoint", "epoch", "written", "size", "on", "loss", "accuracy"]
    assert head == columns
    assert last[:3] == ["step-000020", "1", format_time(WRITTEN + 20)]
    assert last[4:] == ["ps:0-1", "nan", "0.8", "verified"]
    assert first[-1] == "verified, best"
    assert words_of(run(kept, "--no-verify")[1][2])[-1] == "not verified, best"


def test_attempts_are_listed_with_their_failures(kept):
    lost = "lost: its process has ended; its last status was: step 12"
    failures = (
        ("ps:0", "step 12", "ValueError: bad\n  line", True),
        ("ps:1", "seen from ps:0", lost, False),
        None,  # of the node that writes them
        None,
    )
    for number, failure in enumerate(failures, start=1):
        add_attempt(kept, AttemptBegun("a", number, 10 * (number > 1), WRITTEN))
        if failure is not None:
            add_attempt(kept, AttemptFailed("a", number, *failure, WRITTEN))
    add_attempt(kept, AttemptBegun("b", 1, 20, WRITTEN))
    status, lines = run(kept)
    assert status == 0
    began = format_time(WRITTEN)
    assert [words_of(line) for line in lines[4:]] == [
        ["attempt", "began", "after step", "failure"],
        ["1", began, "0", "ps:0: step 12: ValueError: bad"],
        ["2", began, "10", "ps:1: lost: its process has ended"],
        ["3", began, "10", "the first node was lost"],
        ["4", began, "10"],
        ["1", began, "20"],
    ]
    printed = CliRunner().invoke(checkpoints_command, [str(kept), "--json"]).stdout
    attempts = json.loads(printed)["attempts"]
    assert [each["attempt"] for each in attempts[:3]] == ["begun", "failed", "begun"]
    assert attempts[1]["what"] == "ValueError: bad\n  line"


def test_a_damaged_checkpoint_is_an_error_after_the_list(kept):
    with (kept / "step-000010" / "ps-0.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    (kept / "step-000020" / "manifest.json").unlink()
    status, lines = run(kept)
    assert status == 1
    assert [words_of(line)[-1] for line in lines[1:3]] == ["damaged, best", "damaged"]
    first, last = ("".join(line) for line in lines[3:])
    assert first.startswith("step-000010: checkpoint ")
    assert "ps-0.safetensors" in first
    assert "it has no manifest.json" in last


def test_what_does_not_fit_on_a_narrow_screen_is_left_out(kept):
    def shown(width):
        screen = Console(file=StringIO(), width=width, color_system=None)
        for view in list_view(list(find_checkpoints(kept, verify=False)), screen):
            screen.print(view)
        lines = screen.file.getvalue().splitlines()
        assert len(lines) == 3
        assert max(map(len, lines)) <= width
        return lines[0].split()

    assert shown(100)[3:] == ["size", "on", "loss", "accuracy"]
    assert shown(85)[3:] == ["size", "loss", "accuracy"]
    assert shown(70)[3:] == ["loss"]


def test_all_of_one_checkpoint_is_shown(kept):
    status, lines = run(kept / "best")
    assert status == 0
    facts = {words[0]: words[1:] for line in lines if (words := words_of(line))}
    assert f"{kept / 'step-000010'}: verified, best" in facts
    assert facts["model"] == ["small, seed 0"]
    assert facts["position"] == ["step 10: 10 batches (80 rows) of epoch 1"]
    assert facts["best"] == [
        "accuracy 0.9 after step 10 (mode max), 1 evaluation since"
    ]
    assert facts["rows"] == ["npz:rows.npz, 8 rows, batch 8"]
    assert facts["machines"] == [
        "worker:0, ps:0-1: cpu:0 (cpu), 2 threads of XLA, processor 0a1b, jaxlib 0.9"
    ]
    assert facts["w"] == ["float32[200]", "momentum (mu)", "10", "1.6 kB", "ps:0-1"]
    assert facts["ps-1.safetensors"][-2:] == ["1", "100"]


def test_a_checkpoint_of_a_stream_has_its_pass_and_files(tmp_path):
    files = tuple(PassFile(f"{hour}.csv", 9, 0, 40, {}) for hour in (13, 14))
    trained = {"12.csv": 9, "13.csv": 9, "14.csv": 9}
    stream = StreamPosition(StreamPass(2, files), 1, trained, "14.csv", 80, 0)
    write_checkpoint(tmp_path, 10, 10, HALVES, stream=stream)
    assert "pass" in words_of(run(tmp_path)[1][0])
    _, lines = run(tmp_path / "step-000010")
    facts = {words[0]: words[1:] for line in lines if (words := words_of(line))}
    assert facts["position"] == ["step 10: 10 batches (80 rows) of pass 1"]
    assert facts["files"] == [
        "13.csv to 14.csv (2 files); 3 files of the stream so far"
    ]


def test_json_has_the_same(kept):
    done = CliRunner().invoke(checkpoints_command, [str(kept), "--json"])
    last, first = json.loads(done.stdout)["checkpoints"]
    assert first["path"] == str(kept / "step-000010")
    assert (first["verified"], first["problem"], first["best"]) == (True, None, True)
    assert last["best"] is False
    manifest = last["manifest"]
    assert manifest["progress"]["best"]["value"] == 0.9
    assert manifest["parameters"]["w"]["slots"] == ["mu"]
    size = (kept / "step-000020" / "ps-0.safetensors").stat().st_size
    assert manifest["files"]["ps-0.safetensors"] == size
