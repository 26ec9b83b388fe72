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
from support.kept_runs import find_runs

from placer.command.runs import runs_command
from placer.errors import PlacerError
from placer.plan.settings.evaluation_and_stopping import Best
from placer.report.run_files import MODEL_DIGEST, Command, RunEnd, StoredRows, read_run
from placer.report.runs import differing_settings, runs_facts, runs_view
from placer.runtime.control.result import Restart


def write_run(
    folder: Path,
    started: float,
    *,
    name: str = "digits",
    end: RunEnd | None = None,
    monitor: Best | None = None,
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
        monitor=monitor,
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
        settings={**settings, "rate": 0.2},
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
    names = "run eval loss at step train loss steps samples/s time rate --steps started"
    assert " ".join(lines[0]) == names
    assert lines[1][:5] == ["digits-9", "0.25", "last", "0.5", "1,500"]
    assert lines[1][5:9] == ["20,000", "9.0", "s", "0.1"]
    assert lines[1][-1] == "finished"
    assert lines[2][:8] == ["digits-10", "not", "finite", "7", "1.0", "s", "0.2", "9"]
    assert lines[2][-1] == "failed"
    assert lines[3][:4] == ["The", "best", "run", "is"]
    assert "digits-10: worker:0 was killed" in text.splitlines()
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
    screen = Console(file=StringIO(), width=72)
    for view in runs_view(find_runs(runs)[:2], screen):
        screen.print(view)
    head, first, _, *left_out = screen.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert " ".join(head.split()) == "run eval loss at step steps samples/s time rate"
    assert first.split()[-1] == "finished"
    assert left_out[:2] == ["digits-9: --steps=unset", "digits-10: --steps=9"]


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


def test_a_list_has_the_best_evaluation_and_its_step(tmp_path: Path) -> None:
    best = Best("accuracy", "max")
    end = RunEnd(
        "finished",
        eval={"loss": 0.5, "accuracy": 0.75},
        eval_step=40,
        best_eval={"loss": 0.25, "accuracy": 0.875},
        best_step=30,
    )
    write_run(tmp_path / "a-1", 1.0, end=end, monitor=best)
    end = RunEnd("finished", eval={"loss": 0.125, "accuracy": 0.5}, eval_step=1500)
    write_run(tmp_path / "a-2", 2.0, end=end)
    end = RunEnd("finished", eval={"loss": 0.125, "accuracy": 0.5})
    write_run(tmp_path / "a-3", 3.0, end=end, options={"shrink": True})
    _, text = listed(str(tmp_path))
    head, first, second, third = (line.split() for line in text.splitlines()[:4])
    assert third[1:5] == ["0.5", "0.125", "before", "shrinking"]
    assert head[1:7] == ["eval", "accuracy", "eval", "loss", "at", "step"]
    assert first[1:5] == ["0.875", "0.25", "30", "best"]
    assert second[1:5] == ["0.5", "0.125", "1,500", "last"]


def test_a_single_run_is_listed_with_the_rows_on_each_server(tmp_path: Path) -> None:
    few = {"ps:0": 3, "ps:1": 4}
    many = {f"ps:{i}": 1000 + i for i in range(8)}
    tables = {"a": StoredRows(7, 80, counted=2), "b": StoredRows(8028, 90)}
    end = RunEnd(
        "finished",
        tables=tables,
        table_rows={"a": few, "b": many},
        table_counted={"a": {"ps:0": 0, "ps:1": 2}},
        table_bytes={"a": {"ps:0": 30, "ps:1": 50}},
    )
    write_run(tmp_path / "a-1", 1.0, end=end)
    _, text = listed(str(tmp_path))
    (line,) = (each for each in text.splitlines() if "sparse tables" in each)
    assert line.endswith(
        "  a: 7 rows, 2 counted keys without a row, 80 bytes (ps:0 3 rows, 0 counted, 30"
        " bytes; ps:1 4 rows, 2 counted, 50 bytes); b: 8,028 rows, 90 bytes (1,000 to 1,007"
        " rows on each of 8 nodes)"
    )


def test_a_digest_of_the_graph_is_listed_if_no_other_setting_explains_it(
    tmp_path: Path,
) -> None:
    for i, (size, graph) in enumerate([(1, "x"), (2, "y"), (2, "y"), (2, "z")]):
        settings = {"size": size, "graph": graph}
        write_run(tmp_path / f"a-{i}", i, settings=settings)
    found = find_runs(tmp_path)
    assert differing_settings(found[:3]) == ["size"]
    assert differing_settings(found) == ["size", "graph"]


def test_settings_that_other_columns_show_are_not_repeated(tmp_path: Path) -> None:
    train, test = "data.train.batch", "data.eval.batch"
    for i, (name, batch) in enumerate([("a", 8), ("b", 16)]):
        settings = {train: batch, test: batch, MODEL_DIGEST: "x"}
        write_run(tmp_path / f"{name}-1", i, name=name, settings=settings)
    assert differing_settings(find_runs(tmp_path)) == [train]
    settings = {train: 8, test: 16, MODEL_DIGEST: "x"}
    write_run(tmp_path / "other", 2, name="c", settings=settings)
    assert differing_settings(find_runs(tmp_path)) == ["name", train, test]


def test_a_key_of_set_and_its_setting_are_one_column(tmp_path: Path) -> None:
    op, rate = "optimizer.dense.op", "optimizer.dense.learning_rate"
    cosine = {"cosine": {"init": 0.01, "steps": 9}}
    adam = {op: "adam", rate: cosine, "optimizer.dense.b1": 0.9}
    write_run(tmp_path / "a-1", 1, settings=adam)
    key = "train.optimizer.learning_rate"
    write_run(tmp_path / "a-2", 2, set={key: 0.5}, settings={**adam, rate: 0.5})
    sgd = {op: "sgd", rate: cosine}
    write_run(tmp_path / "a-3", 3, set={"train.optimizer.op": "sgd"}, settings=sgd)
    found = find_runs(tmp_path)
    assert differing_settings(found) == [key, "train.optimizer.op"]
    screen = Console(file=StringIO(), width=200)
    for view in runs_view(found, screen):
        screen.print(view)
    _, first, second, third, *_ = screen.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert "cosine: {init: 0.01, steps: 9}  adam" in first
    assert " 0.5   " in second
    assert " sgd " in third
    facts = runs_facts(found)
    assert [run["settings"][key] for run in facts["runs"]] == [cosine, 0.5, cosine]


def test_other_runs_are_listed_if_one_is_damaged(runs: Path) -> None:
    (runs / "digits-9" / "command.json").write_text("{")
    (runs / "other-1" / "history.jsonl").write_text('{"step": 1}\n{"st\n')
    done = CliRunner().invoke(runs_command, [str(runs)])
    assert done.exit_code == 1
    assert done.stdout.splitlines()[1].split()[0] == "digits-10"
    first, _, second, _ = done.stderr.splitlines()
    assert f"cannot read '{runs}/digits-9/command.json': " in first
    assert f"cannot read '{runs}/other-1/history.jsonl': line 2 is damaged" in second
    status, text = listed(str(runs), "--json")
    assert status == 1
    assert len(json.loads(text)["runs"]) == 1


def test_a_run_is_read_with_its_history_and_events(runs: Path) -> None:
    folder = runs / "digits-9"
    (folder / "history.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"step": 3')
    run = read_run(folder)
    assert [line["step"] for line in run.history()] == [1, 2]
    assert [*run.events()] == []
    (folder / "events.jsonl").write_text("[]\n")
    with pytest.raises(PlacerError, match=r"events.jsonl': line 1 is damaged"):
        [*run.events()]
    with pytest.raises(PlacerError, match=r"no-run' is not the folder of a run"):
        read_run(runs / "no-run")
    with pytest.raises(PlacerError, match=r"'.*no-rum' does not exist"):
        read_run(runs / "no-rum")


def test_errors_name_the_folder_and_the_damaged_file(runs: Path) -> None:
    with pytest.raises(PlacerError, match="contains no runs"):
        find_runs(runs / "no-run")
    with pytest.raises(PlacerError, match=r"'.*no-rum' does not exist"):
        find_runs(runs / "no-rum")
    folder = runs / "runs" / "day-1"
    folder.mkdir(parents=True)
    with pytest.raises(PlacerError) as missing:
        find_runs(runs / "day-1")
    assert missing.value.hint == f"did you mean '{folder}'?"
    (runs / "digits-9" / "result.json").write_text('{"ended": 3}')
    with pytest.raises(PlacerError, match=r"cannot read '.*digits-9/result.json'"):
        find_runs(runs)


def test_a_star_marks_the_best_runs_of_a_model_in_several_modes(tmp_path: Path) -> None:
    loss = Best("loss", "min")
    for i, (name, value) in enumerate([("a", 0.25), ("a_async", 0.125), ("b", 0.0)]):
        end = RunEnd("finished", best_eval={"loss": value}, best_step=3, steps=9)
        settings = {"model": "1f" if i < 2 else "2f"}
        write_run(
            tmp_path / f"{name}-1", i, name=name, end=end, monitor=loss,
            settings=settings,
        )  # fmt: skip
    _, text = listed(str(tmp_path))
    first, second, third = (text.splitlines()[i] for i in (1, 2, 5))
    assert (first[:4], second[:11], third[:4]) == ("a-1 ", "a_async-1 *", "b-1 ")
    assert text.splitlines()[3].startswith("a_async-1 has the best eval loss at step 3")


def test_a_number_of_nodes_of_set_is_one_column(tmp_path: Path) -> None:
    write_run(tmp_path / "a-1", 1, settings={"nodes.worker": 2})
    key = "nodes.worker.count"
    write_run(tmp_path / "a-2", 2, set={key: 1}, settings={"nodes.worker": 1})
    assert differing_settings(find_runs(tmp_path)) == [key]


def test_one_run_is_shown_with_its_settings_and_warnings(tmp_path: Path) -> None:
    end = RunEnd(
        "finished",
        steps=9,
        seconds=61.0,
        warnings=("late\n  more",),
        restarts=(Restart("ps:0", "killed", 4, 2, 1.25),) * 2,
    )
    settings = {
        "nodes.worker": 2,
        "data.train.batch": 16,
        "optimizer.dense.op": "sgd",
        "optimizer.dense.learning_rate": 0.5,
    }
    write_run(tmp_path / "a-1", 1.0, end=end, settings=settings, set={"x.y": 1})
    events = [
        {"event": "warning", "message": "learning rate 0"},
        {"event": "resumed", "step": 4, "path": "ck/step-4", "differs": None},
        {"event": "recovered", "attempt": 2, "step": 4, "again": 2, "seconds": 1.25},
        {"event": "failed", "message": "worker:0 was killed"},
        {"event": "start"},
    ]
    lines = "".join(f"{json.dumps(event)}\n" for event in events)
    (tmp_path / "a-1" / "events.jsonl").write_text(lines)
    _, text = listed(str(tmp_path / "a-1"))
    shown = [" ".join(line.split()) for line in text.splitlines()]
    assert "command placer train digits.yaml" in shown
    assert "--set x.y=1" in shown
    assert "optimizer sgd, learning rate 0.5" in shown
    assert "nodes worker: 2" in shown
    assert "batch 16" in shown
    assert "restarts 2: 4 steps again, 2.5 s" in shown
    assert shown[-5:] == [
        "warning: learning rate 0",
        "resumed after step 4 from ck/step-4",
        "all nodes go back to step 4; 2 steps are done again; 1.2 s",
        "failure: worker:0 was killed",
        "warning: late",
    ]


def test_a_run_beside_other_programs_or_with_a_higher_loss_is_marked(
    tmp_path: Path,
) -> None:
    for i, load in enumerate((0.1, 1.5)):
        rose = "the loss rose" if i else ""
        end = RunEnd("finished", other_load=load, diverged=rose)
        write_run(tmp_path / f"a-{i}", i, end=end)
        file = tmp_path / f"a-{i}" / "command.json"
        command = msgspec.json.decode(file.read_bytes(), type=Command)
        command = msgspec.structs.replace(command, machine={"cores": 2})
        file.write_bytes(msgspec.json.encode(command))
    _, text = listed(str(tmp_path))
    assert "a-1: the loss rose" in text
    assert "a-1: other programs used 1.5 of 2 cores" in text
    assert "a-0: " not in text
