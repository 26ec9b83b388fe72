"""A run keeps its command, history, events and result in its folder."""

from __future__ import annotations

import json
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.small_models import two_layers

import placer
from placer.errors import RunWarning
from placer.launcher import run_record
from placer.launcher.run_folder import _runs_of
from placer.launcher.run_record import RunRecord
from placer.report.run_files import Command, find_runs
from placer.runtime.control.events import (
    Event,
    NodeFailure,
    NodeWarning,
    State,
    Step,
)
from placer.runtime.control.table_counts import TableCounts
from placer.runtime.control.wait_counts import WaitCounts

COMMAND = Command(
    "small", "placer train small.yaml", 1.0, "small.yaml", {}, {}, {}, {}, {}
)


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def step(number: int, **more: Any) -> Step:
    return Step(number, 1, {"loss": 1.0 / number}, seconds=0.5 * number, **more)


def record(folder: Path, *events: Event, error: BaseException | None = None) -> None:
    """Record a run with these events that ends with the error."""
    expected = nullcontext() if error is None else pytest.raises(type(error))
    with expected, RunRecord(lambda: folder, COMMAND) as running:
        for event in events:
            running.note(event)
        if error is not None:
            raise error


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    draw = np.random.default_rng(1).normal
    rows = {"x": draw(size=(32, 16)), "y": draw(size=(32, 4))}
    np.savez(
        tmp_path / "rows.npz", **{k: v.astype(np.float32) for k, v in rows.items()}
    )
    (tmp_path / "small.yaml").write_text(two_layers(nodes="{worker: {count: 1}}"))
    monkeypatch.chdir(tmp_path)
    return "small.yaml"


def test_a_run_keeps_its_settings_steps_and_result(spec: str) -> None:
    result = placer.train(
        spec, overrides={"data.train.batch": 16}, in_process=True, steps=2
    )
    (run,) = find_runs(Path("runs"))
    assert run.command.set == {"data.train.batch": 16}
    assert run.command.options == {"steps": 2}
    assert run.settings["data.train.batch"] == 16
    assert run.settings["nodes.worker"] == 1
    assert run.command.versions["placer"] == placer.__version__
    assert (run.end.ended, run.end.steps, run.end.error) == ("finished", 2, None)
    assert run.end.metrics == result.metrics
    history = lines_of(run.folder / "history.jsonl")
    assert [line["metrics"] for line in history] == [
        line["metrics"] for line in result.history
    ]
    assert all(line["learning_rates"] for line in history)


def test_a_launch_has_its_own_folder_beside_the_run_of_the_build(spec: str) -> None:
    placer.train(spec, in_process=True, steps=1)
    build = Path("runs/small-1/build")
    placer.launch(build, in_process=True, steps=1)
    first, second = find_runs(Path("runs"))
    assert second.folder == Path("runs/small-2")
    assert second.command.build == first.command.build == str(build.resolve())


def test_runs_of_a_build_are_beside_it(tmp_path: Path) -> None:
    for build, runs in (
        ("a/build", "a/runs"),
        ("runs/x-1/build", "runs"),
        ("mine/build", "runs"),
        ("runs/build", "runs"),
    ):
        (tmp_path / build).mkdir(parents=True)
        if build in ("runs/x-1/build", "mine/build"):
            (tmp_path / build).with_name("command.json").write_text("{}")
        assert _runs_of(tmp_path / build) == (tmp_path / runs).resolve()


def test_a_resumed_launch_extends_the_run_that_saved_the_checkpoint(spec: str) -> None:
    placer.compile(spec, "build")
    how: dict[str, Any] = {"in_process": True, "checkpoint": "kept"}
    placer.launch("build", steps=3, checkpoint_every="2", **how)
    placer.launch("build", in_process=True, steps=1)
    placer.launch("build", steps=4, resume="kept/step-000002", **how)
    resumed, _ = find_runs(Path("runs"))
    history = lines_of(resumed.folder / "history.jsonl")
    assert [line["step"] for line in history] == [1, 2, 3, 4]
    assert (resumed.end.ended, resumed.end.steps) == ("finished", 4)
    assert len(resumed.command.continued) == 1
    assert resumed.settings["steps"] == 4


def test_a_failed_run_keeps_its_root_cause(tmp_path: Path) -> None:
    seen = step(1), step(2, eval={"loss": 0.25})
    record(tmp_path, *seen, step(3), error=placer.PlacerError("worker:0 was killed"))
    (run,) = find_runs(tmp_path)
    assert (run.end.ended, run.end.error) == ("failed", "worker:0 was killed")
    assert (run.end.steps, run.end.seconds, run.end.eval) == (3, 1.5, {"loss": 0.25})


def test_an_interrupted_run_keeps_its_steps(tmp_path: Path) -> None:
    record(tmp_path, step(1), error=KeyboardInterrupt("nothing was saved"))
    (run,) = find_runs(tmp_path)
    assert (run.end.ended, run.end.error) == ("interrupted", "nothing was saved")
    assert run.end.steps == 1


def test_a_run_that_fails_before_its_first_step_keeps_nothing(tmp_path: Path) -> None:
    record(tmp_path, NodeWarning("careful"), error=placer.PlacerError("too early"))
    assert not [*tmp_path.iterdir()]


def test_a_continued_run_extends_the_files(tmp_path: Path) -> None:
    """Later steps and an incomplete line of the first part are removed."""
    file = tmp_path / "history.jsonl"
    record(tmp_path, step(1), step(2), step(3), error=KeyboardInterrupt())
    file.write_text(file.read_text() + '{"step": 4, "epo')
    record(tmp_path, step(2), step(3))
    assert [line["step"] for line in lines_of(file)] == [1, 2, 3]
    assert find_runs(tmp_path)[0].end.ended == "finished"


def test_events_have_the_changes_of_states_and_the_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_record, "MAX_EVENTS", 300)
    ready, running = State("worker:0", "ready"), State("worker:0", "running", 1)
    warnings = [NodeWarning(f"warning {i}") for i in range(20)]
    failure = NodeFailure(placer.channel.cause.Cause("worker:0", "", "no memory"), True)
    record(tmp_path, ready, ready, step(1), running, running, *warnings, failure)
    events = lines_of(tmp_path / "events.jsonl")
    assert [each.get("state") for each in events[:2]] == ["ready", None]
    assert events[-1]["event"] == "failed"
    assert 2 < len(events) < 20


def test_evaluations_have_the_waits_of_nodes_and_the_counts_of_servers(
    tmp_path: Path,
) -> None:
    def state(node: str, samples: int, waiting: int = 0, rows: int = 0) -> State:
        tables = {"emb": TableCounts(rows=rows)} if rows else {}
        stale = {"1": rows, "10": 1, "2": 2} if rows else {}
        waits = WaitCounts(samples, waiting)
        return State(node, "running", 1, tables=tables, staleness=stale, waits=waits)

    first = [state("worker:0", 5, 5), state("ps:0", 9, 0, 3), state("ps:1", 9, 0, 4)]
    others = [state("worker:0", 20, 5), state("ps:0", 25, 5, 5)]
    others += [state("ps:1", 25, 5, 6)]
    later = [state("worker:0", 30, 15), state("ps:0", 35, 6), state("ps:1", 65, 5)]
    evaluation = {"loss": 0.5}
    record(
        tmp_path,
        *first,
        step(1, eval=evaluation),
        *others,
        step(2),
        step(3, eval=evaluation),
        step(4, eval=evaluation),
        *later,
        step(5, eval=evaluation),
    )
    early, without, waited, late, last = lines_of(tmp_path / "history.jsonl")
    assert "waiting" not in early
    assert early["tables"]["emb"]["rows"] == 7
    assert "tables" not in without
    assert waited["waiting"] == {"ps:0": 0.2, "ps:1": 0.2, "worker:0": 0.25}
    assert waited["tables"]["emb"]["rows"] == 11
    assert "waiting" not in late
    assert last["waiting"] == {"ps:0": 0.1, "ps:1": 0.0, "worker:0": 1.0}
    assert [*late["staleness"].items()] == [("1", 11), ("2", 4), ("10", 2)]


def test_a_long_history_keeps_every_few_steps_and_all_evaluations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_record, "MAX_HISTORY", 4000)
    monkeypatch.setattr(run_record, "FLUSH_INTERVAL", 0.0)
    evaluated = {150, 301}
    record(
        tmp_path,
        *(
            step(i, eval={"loss": 1.0} if i in evaluated else None)
            for i in range(1, 401)
        ),
    )
    history = lines_of(tmp_path / "history.jsonl")
    assert (tmp_path / "history.jsonl").stat().st_size <= 4000
    steps = [line["step"] for line in history]
    assert steps == sorted(steps)
    assert evaluated < {*steps}
    apart = {b - a for a, b in pairwise(steps)}
    assert len(steps) > 10
    assert max(apart) <= 32


def test_a_run_goes_on_if_its_files_cannot_be_written(tmp_path: Path) -> None:
    def refuse() -> Path:
        raise PermissionError(13, "Permission denied")

    kept = RunRecord(refuse, COMMAND)
    kept.note(step(1))
    kept.note(step(2))
    with pytest.warns(RunWarning, match="Permission denied"):
        kept.__exit__(None, None, None)
    assert kept.has_trained


def test_a_run_without_a_result_is_running_or_killed(tmp_path: Path) -> None:
    running = RunRecord(lambda: tmp_path, COMMAND)
    with running:
        running.note(step(1))
        assert find_runs(tmp_path)[0].end.ended == "running"
    (tmp_path / "result.json").unlink()
    (run,) = find_runs(tmp_path)
    assert (run.end.ended, run.end.steps) == ("killed", 1)
