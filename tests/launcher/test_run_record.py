"""A run keeps its command, history, events and result in its folder."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.kept_runs import find_runs
from support.small_models import two_layers

import placer
from placer.errors import RunWarning
from placer.launcher import run_record
from placer.launcher.continued_run import run_of_checkpoint
from placer.launcher.run_command import command_of
from placer.launcher.run_folder import _runs_of
from placer.launcher.run_record import RunRecord
from placer.plan.settings.evaluation_and_stopping import Best
from placer.report.compared_settings import differing_settings
from placer.report.run_about import about_run
from placer.report.run_files import Command, Run, RunEnd, read_run
from placer.runtime.control.events import (
    CheckpointSaved,
    Event,
    NodeFailure,
    NodeWarning,
    PassBegun,
    Recovered,
    State,
    Step,
)
from placer.runtime.control.execution import Timing
from placer.runtime.control.options import Options
from placer.runtime.control.result import Result
from placer.runtime.control.table_counts import TableCounts
from placer.runtime.control.wait_counts import WaitCounts
from placer.system.resources import find_file

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
    with expected, RunRecord(lambda _: folder, COMMAND) as running:
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
    assert result.folder == run.folder
    assert f"the run's folder is {run.folder}" in repr(result)
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


def test_each_setting_of_a_sparse_table_can_be_compared(tmp_path: Path) -> None:
    spec = find_file("specs/wide_deep_sparse.yaml")
    plan = placer.compile(spec, tmp_path / "build")
    settings = command_of(tmp_path / "build", plan, Options()).settings
    assert settings["graph.vectors.dim"] == 16
    assert settings["graph.vectors.init"] == ("normal", (0.0, 0.01))
    assert settings["graph.wide.admit"] == "always"
    assert settings["optimizer.vectors.table.learning_rate"] == {
        "cosine": {"init": 0.15, "steps": 512}
    }
    assert settings["optimizer.wide.table.initial_accumulator_value"] == 1e-4
    changed = {
        "train.optimizer.2.update": "async",
        "train.optimizer.0.update": "async",
        "train.optimizer.1.update": "async",
        "graph.vectors.capacity": "1000000",
        "graph.vectors.admit": "{bloom: {count: 3, bytes: 64000}}",
        "graph.vectors.forget": "{unseen_steps: 10}",
        "graph.vectors.score": "{show_weight: 0.5, decay: 0.25}",
    }
    texts = [f"{key}={value}" for key, value in changed.items()]
    plan = placer.compile(spec, tmp_path / "other", overrides=texts)
    other = command_of(tmp_path / "other", plan, Options()).settings
    differ = {key for key in {*settings, *other} if settings.get(key) != other.get(key)}
    assert {key: other[key] for key in differ - {"graph", "model"}} == {
        "graph.vectors.capacity": 1000000,
        "graph.vectors.admit": {"bloom": {"count": 3, "bytes": 64000}},
        "graph.vectors.forget": {"every": 256, "unseen_steps": 10},
        "graph.vectors.score": {
            "show_weight": 0.5,
            "click_weight": 1.0,
            "decay": 0.25,
        },
        "optimizer.wide.table.update": "async",
        "optimizer.vectors.table.update": "async",
        "optimizer.dense2.update": "async",
    }


def test_equal_settings_in_other_words_are_no_difference(tmp_path: Path) -> None:
    def run_with(*texts: str) -> Run:
        plan = placer.compile(
            find_file("specs/digits.yaml"), tmp_path / "build", overrides=texts
        )
        command = command_of(tmp_path / "build", plan, Options(), overrides=texts)
        return Run(tmp_path, command, RunEnd("finished"))

    update, rate = "train.optimizer.update", "train.optimizer.learning_rate"
    plain = run_with()
    sync = run_with(f"{update}={{sync: {{backup: 0}}}}", "graph.h1.size=128")
    bounded = run_with(f"{update}={{async: {{max_staleness: 0}}}}")
    assert differing_settings([plain, run_with(f"{update}=sync"), sync, bounded]) == []
    geo = run_with(f"{update}={{geo: {{every: 10}}}}")
    same_geo = run_with("train.optimizer.0.update={geo: {scale: mean, every: 10}}")
    assert differing_settings([geo, same_geo]) == []
    assert differing_settings([plain, geo, same_geo]) == [update]
    fast = run_with(f"{rate}=.1")
    same_rate = run_with("train.optimizer.0.learning_rate=1.0e-1")
    assert differing_settings([fast, same_rate]) == []
    assert differing_settings([plain, fast, same_rate]) == [rate]


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


def test_a_resumed_launch_extends_the_run_that_saved_the_checkpoint(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Steps are timed before the metrics of the first step arrive.
    monkeypatch.setattr(Timing, "rate", property(lambda timing: 64.0))
    placer.compile(spec, "build")
    how: dict[str, Any] = {"in_process": True, "checkpoint": "kept"}
    placer.launch("build", steps=3, checkpoint_every="2", **how)
    placer.launch("build", in_process=True, steps=1)
    result = placer.launch("build", steps=4, resume="kept/step-000002", **how)
    assert [line["step"] for line in result.history] == [3, 4]
    resumed, _ = find_runs(Path("runs"))
    history = lines_of(resumed.folder / "history.jsonl")
    assert [line["step"] for line in history] == [1, 2, 3, 4]
    # The first step of each process is not measured.
    measured = [line["step"] for line in history if "samples_per_second" in line]
    assert measured == [2, 4]
    assert (resumed.end.ended, resumed.end.steps) == ("finished", 4)
    assert len(resumed.command.continued) == 1
    assert resumed.settings["steps"] == 4


def run_in(folder: str) -> Run:
    (run,) = find_runs(Path(folder))
    return run


def steps_of(run: Run) -> list[int]:
    return [line["step"] for line in run.history()]


def train(spec: str, steps: int, resume: str | None = None, **more: Any) -> None:
    placer.train(spec, in_process=True, steps=steps, resume=resume, **more)


def test_a_resumed_training_extends_the_run_with_the_checkpoint(spec: str) -> None:
    train(spec, 4, checkpoint="runs/small-1/kept", checkpoint_every="2")
    train(spec, 5, "runs/small-1/kept/step-000002")
    run = run_in("runs")
    assert steps_of(run) == [1, 2, 3, 4, 5]
    resumed = [each["step"] for each in run.events() if each["event"] == "resumed"]
    assert resumed == [2]
    assert [each.step for each in run.command.continued] == [2]
    assert run.command.build == str(Path("runs/small-1/build").resolve())

    # A changed build is written next to the first one, which checkpoints refer to.
    changed = {"train.optimizer.learning_rate": 0.25}
    train(spec, 6, "runs/small-1/kept", overrides=changed)
    run = run_in("runs")
    assert steps_of(run) == [1, 2, 3, 4, 5, 6]
    assert run.command.build == str(Path("runs/small-1/build-2").resolve())
    assert run.command.set == changed

    # A failure before the first step changes nothing.
    before = sorted(Path("runs/small-1").rglob("*"))
    for values in (changed, {"train.optimizer.learning_rate": 0.75}):
        with pytest.raises(placer.PlacerError, match="'no' does not exist"):
            train(spec, 7, "runs/small-1/kept", overrides=values, history="no/file")
    assert sorted(Path("runs/small-1").rglob("*")) == before


def test_a_resumed_training_has_a_new_folder_if_no_run_saved_its_checkpoint(
    spec: str,
) -> None:
    both = {"checkpoint": "kept", "resume": "kept"}
    train(spec, 2, **both)
    assert steps_of(run_in("runs")) == [1, 2]
    train(spec, 3, **both)
    assert steps_of(run_in("runs")) == [1, 2, 3]
    Path("kept").rename("moved")
    train(spec, 4, "moved")
    assert [steps_of(run) for run in find_runs(Path("runs"))] == [[1, 2, 3], [4]]
    train(spec, 5, "runs/small-1/../../moved", out="branch")
    assert steps_of(run_in("branch")) == [4, 5]


def test_a_run_without_further_steps_keeps_its_settings_and_its_result(
    spec: str,
) -> None:
    train(spec, 2, checkpoint="runs/small-1/kept")
    files = [Path("runs/small-1") / name for name in ("command.json", "result.json")]
    before = [file.read_bytes() for file in files]
    changed = {"train.optimizer.learning_rate": 0.75}
    how: dict[str, Any] = {"in_process": True, "overrides": changed}
    resumed = placer.train(spec, steps=2, resume="runs/small-1/kept", **how)
    assert repr(resumed).startswith("Result: 2 steps; nothing was left to train")
    assert resumed.folder == Path("runs/small-1").resolve()
    assert steps_of(run_in("runs")) == [1, 2]
    assert [file.read_bytes() for file in files] == before


def test_an_interrupted_run_without_further_steps_has_finished(tmp_path: Path) -> None:
    first = step(1, samples_per_second=64.0)
    record(tmp_path, first, error=KeyboardInterrupt("saved"))
    record(tmp_path, Result(1, {"loss": 1.0}, {}, 0.0, {}))
    (run,) = find_runs(tmp_path)
    assert (run.end.ended, run.end.error, run.end.steps) == ("finished", None, 1)
    assert run.end.samples_per_second == 64.0


@pytest.mark.parametrize(
    ("batch", "last", "rose"),
    [
        (32, 4.5, "the loss rose from 2 to 4.5, the mean of the last 10 steps"),
        (32, 3.5, ""),
        (4, 4.5, ""),  # The mean over the first eight steps is larger.
    ],
)
def test_a_loss_that_rose_is_in_the_result(
    tmp_path: Path, batch: int, last: float, rose: str
) -> None:
    settings = {"train.minimize": "loss", "data.train.batch": batch}
    result = Result(20, {"loss": 9.0}, {}, 1.0, {})
    with RunRecord(lambda _: tmp_path, replace(COMMAND, settings=settings)) as running:
        for number, loss in enumerate([2.0, *[50.0] * 9, *[last] * 10], start=1):
            running.note(replace(step(number), metrics={"loss": loss}))
        running.note(result)
    (run,) = find_runs(tmp_path)
    assert (result.diverged, run.end.diverged) == (rose, rose)


def test_only_an_ended_run_of_the_same_model_is_continued(tmp_path: Path) -> None:
    saved = replace(COMMAND, checkpoints=str(tmp_path / "kept"))
    for number in (1, 2):
        folder = tmp_path / "runs" / f"small-{number}"
        folder.mkdir(parents=True)
        started = replace(saved, started=number)
        with RunRecord(lambda _, folder=folder: folder, started) as running:
            running.note(step(1))
            kept, runs = tmp_path / "kept", tmp_path / "runs"
            earlier = runs / "small-1" if number == 2 else None
            assert run_of_checkpoint(kept, "small", runs) == earlier
    for checkpoint in ("kept", "kept/step-000001"):
        found = run_of_checkpoint(tmp_path / checkpoint, "small", runs)
        assert found == runs / "small-2"
    inside = runs / "small-1" / "checkpoints" / "step-000001"
    assert run_of_checkpoint(inside, "small", runs) == runs / "small-1"
    assert run_of_checkpoint(inside, "other", runs) is None
    assert run_of_checkpoint(tmp_path / "elsewhere", "small", runs) is None


def test_a_failed_run_keeps_its_root_cause(tmp_path: Path) -> None:
    seen = step(1), step(2, eval={"loss": 0.25})
    went_on = Recovered(2, 1, 1, 0.51234, "ps:0", "ps:0 was killed\n  line")
    error = placer.PlacerError("worker:0 was killed")
    record(tmp_path, *seen, went_on, step(3), error=error)
    (run,) = find_runs(tmp_path)
    assert (run.end.ended, run.end.error) == ("failed", "worker:0 was killed")
    assert (run.end.steps, run.end.seconds, run.end.eval) == (3, 1.5, {"loss": 0.25})
    (restart,) = run.end.restarts
    assert str(restart) == "ps:0 was killed (1 step again, 0.5 s)"
    assert [each["again"] for each in run.events()] == [1]


def test_an_interrupted_run_keeps_its_steps_and_its_best_checkpoint(
    tmp_path: Path,
) -> None:
    saved = CheckpointSaved(1, "kept/step-000001", best=True), CheckpointSaved(1, "b")
    record(tmp_path, step(1), *saved, error=KeyboardInterrupt("nothing was saved"))
    (run,) = find_runs(tmp_path)
    assert run.end.best == "kept/step-000001"
    assert (run.end.ended, run.end.error) == ("interrupted", "nothing was saved")
    assert run.end.steps == 1


def test_a_result_has_the_failures_after_it(tmp_path: Path) -> None:
    """The last result is that of the launcher, which knows all failures."""
    result = Result(1, {"loss": 0.5}, {}, 0.0, {})
    late = replace(result, warnings=("ps:0 was killed",), failed_late=True)
    record(tmp_path, step(1), result, late)
    (run,) = find_runs(tmp_path)
    assert run.end.warnings == ("ps:0 was killed",)
    assert run.end.failed_late


def test_a_result_has_the_best_evaluation(tmp_path: Path) -> None:
    """A continued run also compares the evaluations before the checkpoint."""
    command = replace(COMMAND, monitor=Best("accuracy", "max"))
    runs = [
        {2: 0.5, 4: 0.75, 6: 0.875},
        {5: math.nan, 6: 0.375},
    ]
    for evaluations in runs:
        with RunRecord(lambda _: tmp_path, command) as running:
            for number in range(min(evaluations) - 1, 8):
                value = evaluations.get(number)
                metrics = {"accuracy": value} if value is not None else None
                running.note(step(number, eval=metrics))
            result = Result(7, {}, {}, 0.0, {})
            running.note(result)
    assert (result.best_step, result.best_eval) == (2, {"accuracy": 0.5})
    assert "best  accuracy 0.5  (step 2)" in repr(result)
    (run,) = find_runs(tmp_path)
    assert (run.end.best_step, run.end.eval_step) == (2, 6)
    assert run.end.best_eval == {"accuracy": 0.5}


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
        return State(
            node,
            "running",
            1,
            tables=tables,
            staleness=stale,
            geo_staleness={"3": 2} if rows else {},
            waits=waits,
        )

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
    assert late["geo_staleness"] == {"3": 4}


def test_the_last_step_of_a_pass_has_its_files_and_metrics(tmp_path: Path) -> None:
    names = ("29/13.csv", "29/14.csv")
    begun = PassBegun(12, 4, 2, names, 16, left_out=3, waited=2.5)
    counts = (
        {"emb": TableCounts(admitted=9)},
        {"emb": TableCounts(admitted=9, forgotten=2)},
    )
    state, at_end = (State("ps:0", "running", 5, tables=each) for each in counts)
    at_end = replace(at_end, pass_end=5)
    later = replace(at_end, tables={"emb": TableCounts(admitted=11)})
    ends = step(5, epoch_metrics={"loss": 0.25})
    settings = {"data.train.stream.files": 2}
    command = replace(COMMAND, settings=settings)
    with RunRecord(lambda _: tmp_path, command) as running:
        for event in (begun, step(4), state, ends, at_end, later, step(6)):
            running.note(event)
    before, last, after = lines_of(tmp_path / "history.jsonl")
    assert "pass" not in {*before, *after}
    assert last["pass"] == {
        "files": 2,
        "first_file": "29/13.csv",
        "last_file": "29/14.csv",
        "rows": 16,
        "left_out": 3,
        "waited": 2.5,
        "metrics": {"loss": 0.25},
    }
    assert (last["tables"]["emb"]["admitted"], last["tables"]["emb"]["forgotten"]) == (
        9,
        2,
    )
    shown = about_run(read_run(tmp_path))
    assert shown["last pass"] == "1, 29/13.csv to 29/14.csv (2 files), 16 rows"


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
    def refuse(resumed: object) -> Path:
        raise PermissionError(13, "Permission denied")

    kept = RunRecord(refuse, COMMAND)
    kept.note(step(1))
    kept.note(step(2))
    with pytest.warns(RunWarning, match="Permission denied"):
        kept.__exit__(None, None, None)
    assert kept.has_trained


def test_a_run_whose_files_cannot_be_written_is_over_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = RunRecord(lambda _: tmp_path, COMMAND)
    kept.note(step(1))
    assert find_runs(tmp_path)[0].end.ended == "running"

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_record, "history_line", refuse)
    kept.note(step(2))
    with pytest.warns(RunWarning, match="No space left"):
        kept.__exit__(None, None, None)
    assert find_runs(tmp_path)[0].end.ended == "killed"


def test_a_second_launcher_leaves_the_files_of_a_running_run(tmp_path: Path) -> None:
    with RunRecord(lambda _: tmp_path, COMMAND) as running:
        running.note(step(1))
        before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
        second = RunRecord(lambda _: tmp_path, COMMAND)
        second.note(step(1))
        with pytest.warns(RunWarning, match="another launcher writes the files"):
            second.__exit__(None, None, None)
        assert {f.name: f.read_bytes() for f in tmp_path.iterdir()} == before
        running.note(step(2))
    assert [line["step"] for line in lines_of(tmp_path / "history.jsonl")] == [1, 2]


def test_a_run_without_a_result_is_running_or_killed(tmp_path: Path) -> None:
    running = RunRecord(lambda _: tmp_path, COMMAND)
    with running:
        running.note(step(1))
        assert find_runs(tmp_path)[0].end.ended == "running"
    (tmp_path / "result.json").unlink()
    (run,) = find_runs(tmp_path)
    assert (run.end.ended, run.end.steps) == ("killed", 1)
