"""Runs over streams of Python functions: rows are trained once, and waits can be stopped."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from support.laned import (
    BATCH,
    LANES,
    MOST,
    PART,
    PASS,
    build_lanes,
    check_trained_once,
    end_lanes,
    lanes_spec,
    write_rows,
)
from support.streamed import run_stream

from placer.checkpoint.folder import list_checkpoints
from placer.checkpoint.manifest import Progress
from placer.errors import CheckpointError, DataError, PlacerError, RunError
from placer.plan.plan import read_plan
from placer.readers.streams.lane_reader import LaneReader
from placer.runtime.control.events import (
    WAITING_FOR_ROWS,
    CheckpointSaved,
    Event,
    NodeWarning,
    Notice,
    PassBegun,
    Resumed,
    State,
    Step,
)
from placer.runtime.control.failure import FinalError
from placer.runtime.control.option_checks import check_effects
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads
from placer.runtime.training_loop import lanes
from placer.runtime.training_loop import stream as stream_module

DECAY = 0.9
"""The learning rate of a step divided by that of the step before."""
SEED = 0


@pytest.fixture(scope="module")
def builds(tmp_path_factory):
    """Builds with 2 and 3 workers, and with 2 asynchronous workers. Those of "bounded" have a bound,
    and read the keys of a sparse table one step ahead."""
    folder = tmp_path_factory.mktemp("lanes")
    found = {workers: build_lanes(folder, workers) for workers in (2, 3)}
    for name, update in (
        ("free", "async"),
        ("bounded", {"async": {"max_staleness": 1}}),
    ):
        model = lanes_spec(2, **(sparse() if name == "bounded" else {}))
        model["train"]["optimizer"]["update"] = update
        model["data"]["train"]["stream"]["rows"] = 2 * PASS
        found[name] = build_lanes(folder / name, 2, **model)
    return found


def sparse() -> dict[str, Any]:
    """Return changes of the spec: the model has a sparse table, whose keys are the rows."""
    (scope,) = lanes_spec(2)["graph"]
    embedding = {"op": "embedding", "in": "key", "dim": 1, "sparse": True}
    scope["ops"] = [
        {"name": "e", **embedding},
        {"name": "h", "op": "reshape", "in": "e", "shape": ["batch", 1]},
        scope["ops"][1],
    ]
    inputs = {"key": "int64[batch]", "y": "float32[batch, 1]"}
    parameters = [{"match": "e.table", "init": "zeros"}]
    return {"graph": [scope], "inputs": inputs, "parameters": parameters}


@pytest.fixture
def stream(builds, tmp_path, monkeypatch):
    """A new data folder, and runs over the rows in it."""
    monkeypatch.setenv("PLACER_DATA", str(tmp_path))
    (tmp_path / "log").mkdir()

    def run(workers=2, events=None, **options):
        return run_stream(builds[workers], tmp_path, events, **options)

    return run


def passes(events: list[Event]) -> list[tuple[int, int]]:
    return [(e.number, e.first_step) for e in events if isinstance(e, PassBegun)]


def warnings(events: list[Event]) -> list[str]:
    return [e.message for e in events if isinstance(e, NodeWarning)]


def test_other_workers_go_on_in_the_middle_of_a_pass(stream, tmp_path):
    write_rows(tmp_path, 21)
    events: list[Event] = []
    trace = tmp_path / "trace.json"
    assert stream(2, events, steps=6, trace=trace).steps == 6
    assert '"wait for rows"' in trace.read_text()
    position = list_checkpoints(tmp_path / "kept")[0][1].progress.stream
    assert [p.rows + (p.mark or {"row": 0})["row"] for p in position.lanes] == (
        [12] * LANES
    )
    assert stream(3, events, passes=1).steps == 8
    end_lanes(tmp_path)  # the last row of each lane fills no batch
    end = tmp_path / "end"
    result = stream(3, events, save_params=end)
    assert (result.steps, result.passes) == (10, 1)
    check_trained_once(end, 20)
    assert passes(events) == [(1, 1), (2, 5), (2, 5), (3, 9)]
    stream(2, events, save_params=end)
    assert "the function of the stream has ended" in warnings(events)[-1]
    check_trained_once(end, 20)
    ends = [e for e in events if isinstance(e, Notice) and "has ended" in e.message]
    assert len(ends) == 1


def test_any_order_of_runs_trains_the_rows_of_one_process(tmp_path, monkeypatch):
    """Runs have other workers and microbatches, and some end without a checkpoint."""
    monkeypatch.setenv("PLACER_DATA", str(tmp_path))
    train = lanes_spec(1)["train"]
    rate = {"exponential": {"init": 0.1, "rate": DECAY, "steps": 1}}
    train["optimizer"]["learning_rate"] = rate
    builds = [
        build_lanes(tmp_path, workers, train={**train, "microbatches": parts})
        for workers, parts in ((2, 1), (3, 2), (1, 3))
    ]
    write_rows(tmp_path, 40)
    takes = watch_takes(monkeypatch)
    kept, end, random, step = tmp_path / "kept", tmp_path / "end", Random(SEED), 0
    order = [*builds, *random.choices(builds, k=2)]
    for build in order:
        checkpoint = kept if random.random() < 0.8 else None
        to = min(step + random.randint(1, 5), MOST // PART)
        run_in_threads(
            build,
            Options(steps=to, checkpoint=checkpoint, resume=kept, save_params=end),
            watch=lambda event: None,
        )
        check_trained_once(end, PART * to, decay=DECAY)
        step = to if checkpoint is not None else step
    assert takes == {*range(max(takes) + 1)}


def watch_takes(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Compare all rows that are read with those of one process; return the numbers of their
    batches."""
    takes, take = set(), LaneReader.take

    def watched(self, epoch, step, ranges):
        found = take(self, epoch, step, ranges)
        number = (epoch - 1) * PASS // BATCH + step
        rows = np.concatenate([np.arange(*each) for each in ranges])
        ids = MOST * (rows // PART) + PART * number + rows % PART
        assert found["x"].argmax(axis=1).tolist() == ids.tolist()
        takes.add(number)
        return found

    monkeypatch.setattr(LaneReader, "take", watched)
    return takes


def test_a_stop_ends_a_wait_for_rows_inside_and_between_passes(
    builds, stream, tmp_path, monkeypatch
):
    """Lane 1 has fewer rows than the others. The run saves while it waits."""
    monkeypatch.setattr(lanes, "FIRST_WARNING", 0.1)
    monkeypatch.setattr(stream_module, "LONG_WAIT", 0.1)
    monkeypatch.setattr(stream_module, "SAVES_AGAIN", 0)
    events: list[Event] = []
    for rows in (6, 8):
        write_rows(tmp_path, 21)
        write_rows(tmp_path, rows, lanes=range(1, 2))
        seen = set[str]()

        def watch(event: Event, seen=seen) -> None:
            events.append(event)
            if isinstance(event, CheckpointSaved):
                seen.add("saved")
            elif isinstance(event, NodeWarning) and "wait for rows" in event.message:
                seen.add("warned")

        run_in_threads(
            builds[2],
            Options(
                checkpoint=tmp_path / "kept",
                resume=tmp_path / "kept",
                save_params=tmp_path / "end",
            ),
            watch=watch,
            interrupts=lambda seen=seen: int(len(seen) == 2),
        )
        slow = [each for each in warnings(events) if "wait for rows" in each]
        assert len(slow) == 1, warnings(events)
        assert "all nodes wait for rows of lane 1 on worker:0, for" in slow[0]
        events.clear()
        check_trained_once(tmp_path / "end", rows)
        progress = list_checkpoints(tmp_path / "kept")[0][1].progress
        assert (progress.step, progress.batches) == (rows // 2, 3 if rows == 6 else 4)
    write_rows(tmp_path, 16)
    stream(3, passes=1, save_params=tmp_path / "end")
    check_trained_once(tmp_path / "end", 16)


def test_a_lane_that_ends_before_the_others_is_an_error_after_the_last_batch(
    stream, tmp_path
):
    write_rows(tmp_path, 21)
    write_rows(tmp_path, 7, lanes=range(4, 5))
    end_lanes(tmp_path)
    with pytest.raises(DataError) as caught:
        stream()
    assert caught.value.message == (
        "python:clicks:rows: lane 4 has ended, but lane 0 has more rows"
    )
    assert caught.value.span is not None
    assert list_checkpoints(tmp_path / "kept")[0][1].progress.step == 3


def test_a_run_saves_before_the_error_of_a_lane(stream, tmp_path):
    write_rows(tmp_path, 21)
    for name in ("broken", "unmarked"):
        (tmp_path / "log" / name).touch()
    with pytest.raises(RunError, match="the broker is gone") as caught:
        stream()
    assert caught.value.span is not None
    assert list_checkpoints(tmp_path / "kept")[0][1].progress.step == 3
    (tmp_path / "log" / "broken").unlink()
    events: list[Event] = []
    stream(events=events, passes=2, save_params=tmp_path / "end")
    check_trained_once(tmp_path / "end", 16)
    (marks,) = [each for each in warnings(events) if "no mark" in each]
    assert "lane 0 has given no mark for 16 rows: a run that resumes" in marks


def test_a_run_whose_function_ends_has_the_evaluations_that_are_due(stream, tmp_path):
    text = (
        "import numpy as np\n\n\ndef rows():\n    x = np.eye(240, dtype=np.float32)\n"
    )
    (tmp_path / "check.py").write_text(f"{text}    return {{'x': x, 'y': x[:, :1]}}\n")
    model = lanes_spec(2)
    data = {**model["data"], "eval": {"source": "python:check:rows", "batch": 12}}
    train = {**model["train"], "eval": {"every": 2}}
    build = build_lanes(tmp_path, 2, data=data, train=train)
    write_rows(tmp_path, 6)
    evaluated: list[int] = []

    def watch(event: Event) -> None:
        if isinstance(event, Step) and event.eval is not None:
            evaluated.append(event.step)
        if isinstance(event, State) and event.state == WAITING_FOR_ROWS:
            end_lanes(tmp_path)

    kept = tmp_path / "kept"
    run_in_threads(build, Options(checkpoint=kept, resume=kept), watch=watch)
    assert list_checkpoints(kept)[0][1].progress.step == 3
    assert evaluated == [2]
    write_rows(tmp_path, 10)
    run_in_threads(build, Options(steps=5, resume=kept), watch=watch)
    assert evaluated == [2, 4, 5]


def test_options_and_lanes_that_do_not_fit_are_errors(builds, stream, tmp_path):
    write_rows(tmp_path, 21)
    plan, kept = read_plan(builds[2]), {"resume": tmp_path / "kept"}
    for option, hint in (
        (Options(until="now"), "use --passes N"),
        (Options(skip_pass=True, **kept), "remove the option"),
    ):
        with pytest.raises(PlacerError, match="clicks:rows has no files") as refused:
            check_effects(plan, option)
        assert hint in refused.value.hint
    stream(steps=1)
    other = build_other(tmp_path, {"lanes": 4, "rows": 48})
    with pytest.raises(CheckpointError, match=r"has 4 lanes, but had 6"):
        run_stream(other, tmp_path)
    other = build_other(tmp_path, {"lanes": 6, "rows": 60})
    with pytest.raises(CheckpointError, match="inside a pass of 48 rows"):
        run_stream(other, tmp_path)
    other = build_other(tmp_path, {"lanes": 6, "rows": 48}, batch=24)
    with pytest.raises(CheckpointError, match="batch is 24, but was 12") as caught:
        run_stream(other, tmp_path)
    assert "--init-params" in caught.value.hint
    assert "--new-rows" not in caught.value.hint
    (tmp_path / "other.py").write_text((tmp_path / "clicks.py").read_text())
    other = build_other(tmp_path, {"lanes": 6, "rows": 48}, source="python:other:rows")
    events: list[Event] = []
    assert run_stream(other, tmp_path, events, steps=2).steps == 2
    (resumed,) = [each for each in events if isinstance(each, Resumed)]
    assert "python:other:rows gets the marks of python:clicks:rows" in resumed.differs
    files = build_other(tmp_path, {"files": 1}, source="npz:clicks/*.npz")
    with pytest.raises(CheckpointError, match="has files, but had 6 lanes") as caught:
        run_stream(files, tmp_path)
    assert "goes on with files or with lanes" in caught.value.hint


def build_other(
    folder: Path,
    stream: dict[str, int],
    batch: int = 12,
    source: str = "python:clicks:rows",
) -> Path:
    data = {"source": source, "batch": batch, "stream": stream}
    return build_lanes(folder, 2, data={"train": data})


def test_processes_that_read_other_rows_of_a_lane_are_named(stream, tmp_path):
    """The server reads the targets of all lanes. The second call for lane 3 gives others."""
    model = lanes_spec(2)
    loss = model["graph"][0]["ops"].pop()
    model["graph"].append({"place": "/node:ps", "ops": [loss]})
    build = build_lanes(tmp_path, 2, graph=model["graph"])
    write_rows(tmp_path, 21)
    result = run_stream(build, tmp_path, passes=1, save_params=tmp_path / "end")
    assert result.steps == 4
    check_trained_once(tmp_path / "end", 8)
    (tmp_path / "log" / "other").touch()
    with pytest.raises(RunError) as caught:
        run_stream(build, tmp_path)
    assert "column 'y' of lane 3 in pass 2 on" in caught.value.message
    assert list_checkpoints(tmp_path / "kept")[0][1].progress.step == 4


def test_asynchronous_workers_train_each_row_once_and_wait_for_their_own_rows(
    builds, stream, tmp_path, monkeypatch
):
    """In the second run, worker:0 waits for its first step when the checkpoint is saved. No deadline
    passes while a worker waits for another one. Timed checkpoints do not end a wait for rows, and
    each has the rows that fast workers have trained since the last one."""
    monkeypatch.setattr(lanes, "FIRST_WARNING", 0)
    build = builds["free"]
    kept, end, last = tmp_path / "kept", tmp_path / "end", dict[str, int]()

    def watch(event: Event) -> None:
        if isinstance(event, State) and event.node != "ps:0":
            last[event.node] = event.step if event.state == WAITING_FOR_ROWS else -1

    def saved() -> dict[str, int]:
        found = list_checkpoints(kept)
        return dict(found[0][1].progress.workers) if found else {}

    def interrupts() -> int:
        if last == saved() == {"worker:0": 3, "worker:1": 1}:
            write_rows(tmp_path, 14, lanes=range(3))
        return int(last == waiting)

    options = Options(
        checkpoint=kept, resume=kept, save_params=end, checkpoint_every="0.1s"
    )
    write_rows(tmp_path, 6)
    for steps, first in ((1, 7), (7, 0)):
        write_rows(tmp_path, 2 * steps, lanes=range(3, 6))
        last.clear()
        waiting = {"worker:0": first, "worker:1": steps}
        run_in_threads(build, options, watch=watch, interrupts=interrupts)
        assert saved() == {"worker:0": 7, "worker:1": steps}
    check_trained_once(end, 14)
    write_rows(tmp_path, 30)
    write_rows(tmp_path, 18, lanes=range(3, 6))
    since, events = list[float](), list[Event]()
    last.clear()

    def note(event: Event) -> None:
        events.append(event)
        watch(event)
        if last == {"worker:0": 15, "worker:1": 9}:
            write_rows(
                tmp_path, 32, lanes=range(3)
            )  # worker:0 ends the pass, and waits
            since.append(time.monotonic())

    run_in_threads(
        build,
        Options(checkpoint=kept, resume=kept, save_params=end, deadline=3),
        watch=note,
        interrupts=lambda: int(bool(since) and time.monotonic() > since[0] + 3.5),
    )
    assert saved() == {"worker:0": 16, "worker:1": 9}
    text = "python:clicks:rows: worker:1 waits for rows of lane 3, for "
    assert any(each.startswith(text) for each in warnings(events))
    write_rows(tmp_path, 32)
    end_lanes(tmp_path)
    assert run_stream(build, tmp_path, save_params=end).steps == 16
    check_trained_once(end, 32)


def test_an_asynchronous_worker_whose_lanes_have_ended_waits_for_the_others(
    builds, stream, tmp_path
):
    """worker:1 has rows for three steps when the lanes of worker:0 end after seven."""
    write_rows(tmp_path, 15, lanes=range(3))
    end_lanes(tmp_path, lanes=range(3))
    write_rows(tmp_path, 6, lanes=range(3, 6))
    notices: list[str] = []

    def watch(event: Event) -> None:
        if isinstance(event, Notice):
            notices.append(event.message)
        if isinstance(event, CheckpointSaved) and event.step < 7:
            write_rows(tmp_path, 15, lanes=range(3, 6))
            end_lanes(tmp_path)

    options = Options(checkpoint=tmp_path / "kept", save_params=tmp_path / "end")
    assert run_in_threads(builds["free"], options, watch=watch).steps == 7
    assert notices == ["the function of the stream has ended"]
    check_trained_once(tmp_path / "end", 14)


@pytest.mark.parametrize("mode", ["free", "bounded"])
def test_asynchronous_lanes_that_fail_or_end_are_errors_after_a_checkpoint(
    builds, stream, tmp_path, mode
):
    """Lane 1 of worker:0 fails. Later the lanes of worker:0 end before those of worker:1."""

    def progress() -> Progress:
        return list_checkpoints(tmp_path / "kept")[0][1].progress

    build, broken = builds[mode], tmp_path / "log" / "broken"
    write_rows(tmp_path, 14)
    broken.touch()
    with pytest.raises(RunError, match="the broker is gone") as caught:
        run_stream(build, tmp_path)
    assert caught.value.span is not None
    assert 1 <= progress().step <= 3
    broken.unlink()
    write_rows(tmp_path, 18, lanes=range(3, 6))
    end_lanes(tmp_path)
    with pytest.raises(FinalError) as caught:
        run_stream(build, tmp_path, restarts=1)
    assert caught.value.message == (
        "python:clicks:rows: lanes 0, 1, 2 have ended, but lane 3 has more rows"
    )
    assert progress().workers["worker:0"] == 7
    write_rows(tmp_path, 18)
    result = run_stream(build, tmp_path, save_params=tmp_path / "end")
    assert result.steps == 9
    if mode == "free":
        check_trained_once(tmp_path / "end", 18)
    else:
        assert [each["rows"] for each in result.tables.values()] == [9 * BATCH]


def test_a_sparse_table_has_the_keys_of_all_trained_rows(stream, tmp_path):
    """Keys are sent one step ahead, up to the last batch that all lanes fill. The run waits for rows
    of a step, and later of the first step of a pass."""
    train = {**lanes_spec(2)["train"], "microbatches": 2}
    builds = {
        2: build_lanes(tmp_path, 2, **sparse()),
        3: build_lanes(tmp_path, 3, **sparse(), train=train),
    }
    present = [5]
    write_rows(tmp_path, *present)

    def watch(event: Event) -> None:
        if not isinstance(event, State) or event.node != "worker:0":
            return
        if event.state == WAITING_FOR_ROWS:
            present.append(8 if present[-1] < 8 else 11)
            write_rows(tmp_path, present[-1])
            if present[-1] == 11:
                end_lanes(tmp_path)

    counts, kept = [], tmp_path / "kept"
    for workers, steps in ((2, 1), (3, 3), (2, None)):
        options = Options(checkpoint=kept, resume=kept, steps=steps)
        result = run_in_threads(builds[workers], options, watch=watch)
        (table,) = result.tables.values()
        counts.append((result.steps, table["rows"], table["lookups"]))
    assert counts == [(1, 12, 12), (3, 36, 24), (5, 60, 24)]
    assert present[-1] == 11
