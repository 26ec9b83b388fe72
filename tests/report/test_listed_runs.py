"""`placer runs` lists runs with their differences, metrics and ends."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

from placer.command.runs import runs_command
from placer.errors import PlacerError
from placer.report.run_files import Command, RunEnd, find_runs
from placer.report.runs import differing_settings, runs_view


def write_run(
    folder: Path,
    started: float,
    *,
    name: str = "digits",
    end: RunEnd | None = None,
    **facts: dict[str, Any],
) -> None:
    folder.mkdir(parents=True)
    facts = {"set": {}, "settings": {}, "options": {}, **facts}
    command = Command(
        name=name,
        command="placer train digits.yaml",
        started=started,
        spec="digits.yaml",
        versions={},
        machine={},
        **facts,
    )
    (folder / "command.json").write_bytes(msgspec.json.encode(command))
    if end is not None:
        (folder / "result.json").write_bytes(msgspec.json.encode(end))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three runs: one finished, one failed with another rate, and one of another model."""
    settings = {"rate": 0.1, "train.epochs": 2, "nodes.worker": 1}
    finished = RunEnd("finished", None, 9.0, 1500, {"loss": 0.5}, {"loss": 0.25}, 2e4)
    failed = RunEnd("failed", "worker:0 was killed\n  log: x", 1.0, 7, {"loss": None})
    write_run(
        tmp_path / "digits-10",
        2.0,
        end=failed,
        set={"rate": 0.2},
        settings=settings,
        options={"steps": 9, "save_params": "x"},
    )
    write_run(tmp_path / "digits-9", 1.0, end=finished, settings=settings)
    write_run(tmp_path / "other-1", 3.0, name="other", settings={"rate": 7})
    (tmp_path / "no-run").mkdir()
    return tmp_path


def listed(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(runs_command, list(arguments))
    return done.exit_code, done.stdout


def test_a_list_has_the_metrics_the_differences_and_the_ends(runs: Path) -> None:
    status, text = listed(str(runs))
    assert status == 0
    lines = [line.split() for line in text.splitlines()]
    names = "run eval loss train loss steps samples/s rate --steps started"
    assert " ".join(lines[0]) == names
    assert lines[1][:6] == ["digits-9", "0.25", "0.5", "1,500", "20,000", "0.1"]
    assert lines[1][-1] == "finished"
    assert lines[2][:7] == ["digits-10", "not", "finite", "7", "0", "0.2", "9"]
    assert lines[2][-1] == "failed"
    assert lines[3] == ["digits-10:", "worker:0", "was", "killed"]
    assert lines[-1][0] == "other-1"
    assert lines[-1][-1] == "killed"


def test_only_settings_that_differ_are_listed(runs: Path) -> None:
    first, second, other = find_runs(runs)
    assert differing_settings([first, second]) == ["rate", "steps"]
    assert differing_settings([first]) == []
    assert differing_settings([first, other]) == [
        "rate",
        "train.epochs",
        "nodes.worker",
    ]


def test_a_changed_layer_is_not_also_listed_as_another_model(tmp_path: Path) -> None:
    for i in range(2):
        size = {"graph.h1.size": i}
        write_run(tmp_path / f"a-{i}", i, set=size, settings={"model": str(i)})
        write_run(tmp_path / f"b-{i}", 2 + i, settings={"model": str(i)})
    found = find_runs(tmp_path)
    assert differing_settings(found[:2]) == ["graph.h1.size"]
    assert differing_settings(found[2:]) == ["model"]


def test_a_narrow_list_keeps_evaluations_and_ends(runs: Path) -> None:
    screen = Console(file=StringIO(), width=60)
    for view in runs_view(find_runs(runs)[:2], screen):
        screen.print(view)
    (head, first, *_) = screen.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert head.split() == ["run", "eval", "loss", "steps", "samples/s", "rate"]
    assert first.split()[-1] == "finished"


def test_json_has_all_facts(runs: Path) -> None:
    status, text = listed(str(runs), "--json")
    facts = json.loads(text)
    assert status == 0
    assert [run["folder"] for run in facts["runs"]] == [
        str(runs / name) for name in ("digits-9", "digits-10", "other-1")
    ]
    assert facts["runs"][1]["settings"]["rate"] == 0.2
    assert facts["runs"][1]["error"].startswith("worker:0 was killed")
    assert facts["differ"] == {"digits": ["rate", "steps"], "other": []}


def test_the_folder_of_one_run_is_a_list_of_one(runs: Path) -> None:
    assert [run.folder.name for run in find_runs(runs / "digits-9")] == ["digits-9"]


def test_errors_name_the_folder_and_the_damaged_file(runs: Path) -> None:
    with pytest.raises(PlacerError, match="contains no runs"):
        find_runs(runs / "no-run")
    with pytest.raises(PlacerError, match=r"'.*no-rum' does not exist"):
        find_runs(runs / "no-rum")
    (runs / "digits-9" / "result.json").write_text('{"ended": 3}')
    with pytest.raises(PlacerError, match=r"cannot read '.*digits-9/result.json'"):
        find_runs(runs)
