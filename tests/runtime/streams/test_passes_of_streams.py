"""Runs over streams of files: the bits of their passes, and how they stop and go on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support.checkpointed import check_equal
from support.streamed import build_stream, run_stream, stream_spec, write_file

from placer.checkpoint.folder import InUseError, list_checkpoints, locked
from placer.errors import DataError, PlacerError
from placer.launcher.checks import busy_folder
from placer.plan.plan import read_plan
from placer.runtime.control.common_step import Action
from placer.runtime.control.events import (
    WAITING_FOR_FILE,
    Event,
    NodeWarning,
    PassBegun,
    Resumed,
    State,
    Step,
    format_output,
)
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads
from placer.runtime.training_loop.stream import PassesOfStream

ROWS = {1: 22, 2: 14, 3: 17}
"""The rows of the files. With batches of 4, the passes have 5, 3 and 4 steps."""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A build of the stream, and its parameters after all files."""
    folder = tmp_path_factory.mktemp("stream")
    build = build_stream(folder, stream_spec())
    write_files(folder)
    run_stream(build, folder, until="now", save_params=folder / "end")
    return build, folder / "end"


def write_files(folder: Path) -> None:
    for number, rows in ROWS.items():
        write_file(folder, number, rows)


@pytest.fixture
def stream(built, tmp_path, monkeypatch):
    """A build, a new data folder without files, and a run of the build in it."""
    build, _ = built
    monkeypatch.setattr(
        "placer.runtime.batches.opened_sources.data_root", lambda build: tmp_path
    )

    def run(events=None, **options):
        return run_stream(build, tmp_path, events, **options)

    return run


def newest(folder: Path):
    return list_checkpoints(folder / "kept")[0][1].progress


def passes(events: list[Event]) -> list[tuple[int, int, int]]:
    return [
        (each.number, each.first_step, each.steps)
        for each in events
        if isinstance(each, PassBegun)
    ]


def test_a_stream_has_the_bits_of_runs_over_one_file_after_the_other(
    stream, built, tmp_path
):
    """The stream also goes on after a run over the first file."""
    write_files(tmp_path)
    for number in ROWS:
        source = f"npz:clicks/day-{number}.npz"
        build = build_stream(tmp_path, stream_spec(source, stream=None), f"b{number}")
        options = Options(
            checkpoint=tmp_path / "kept",
            resume=tmp_path / "kept" if number > 1 else None,
            new_rows=number > 1,
            save_params=tmp_path / "end",
        )
        run_in_threads(build, options, watch=lambda event: None)
        if number == 1:
            shutil.copytree(tmp_path / "kept", tmp_path / "first")
    check_equal(tmp_path / "end", built[1])
    events: list[Event] = []
    kept = dict.fromkeys(("checkpoint", "resume"), tmp_path / "first")
    stream(events, until="now", save_params=tmp_path / "end", **kept)
    assert passes(events) == [(2, 6, 3), (3, 9, 4)]
    check_equal(tmp_path / "end", built[1])
    progress = list_checkpoints(tmp_path / "first")[0][1].progress
    assert [*progress.stream.trained] == [f"clicks/day-{n}.npz" for n in ROWS]


def test_a_stream_that_stops_in_and_after_passes_has_the_same_bits(
    stream, built, tmp_path
):
    write_files(tmp_path)
    events: list[Event] = []
    assert stream(events, passes=1).passes == 1
    assert newest(tmp_path).is_end is False
    stream(events, steps=7)
    progress = newest(tmp_path)
    assert (progress.step, progress.batches, progress.stream.first_step) == (7, 2, 6)
    assert [*progress.stream.trained] == ["clicks/day-1.npz", "clicks/day-2.npz"]
    # The rest of the second pass is the first pass of the next command.
    result = stream(events, passes=2, save_params=tmp_path / "end")
    assert (result.steps, result.passes) == (12, 2)
    assert passes(events) == [(1, 1, 5), (2, 6, 3), (2, 6, 3), (3, 9, 4)]
    resumed = [each for each in events if isinstance(each, Resumed)]
    assert not any(each.differs for each in resumed)
    check_equal(tmp_path / "end", built[1])


def test_a_stop_ends_the_wait_for_a_file(stream, built, tmp_path, monkeypatch):
    """Without files, after two of them, and before the first pass of a later command."""
    stops = iter([[], [1, 2], [], [3]])
    for files in stops:
        for number in files:
            write_file(tmp_path, number, ROWS[number])
        events: list[Event] = []
        kept = tmp_path / "kept"
        before = len(list_checkpoints(kept)) if kept.exists() else 0
        waits = [False]

        def watch(event: Event, events=events, waits=waits) -> None:
            events.append(event)
            waits[0] |= isinstance(event, State) and event.state == WAITING_FOR_FILE

        run_in_threads(
            built[0],
            Options(
                checkpoint=tmp_path / "kept",
                resume=tmp_path / "kept",
                checkpoint_every="1000",
                save_params=tmp_path / "end",
            ),
            watch=watch,
            interrupts=lambda waits=waits: int(waits[0]),
        )
        # The pass is saved before the wait, and once.
        after = len(list_checkpoints(kept))
        assert after - before == (1 if files else 0)
    assert passes(events) == [(3, 9, 4)]
    check_equal(tmp_path / "end", built[1])


def test_a_stop_while_a_pass_is_opened_comes_after_a_step_of_it(
    stream, built, tmp_path, monkeypatch
):
    write_files(tmp_path)
    enter = PassesOfStream.enter

    def enter_and_stop(self, announced, batches):
        enter(self, announced, batches)
        if announced.present.number == 2:
            common = self._execution.common_step
            if self._execution.is_control:
                common.request(Action.STOP)
            common.await_round()

    with monkeypatch.context() as patch:
        patch.setattr(PassesOfStream, "enter", enter_and_stop)
        assert stream(until="now", checkpoint_every="1000").steps == 6
    stream(until="now", save_params=tmp_path / "end")
    check_equal(tmp_path / "end", built[1])


def test_a_file_that_comes_while_the_run_waits_is_trained(stream, built, tmp_path):
    write_file(tmp_path, 1, ROWS[1])
    events: list[Event] = []
    left = [3, 2]

    class Arriving(list[Event]):
        def append(self, event: Event) -> None:
            super().append(event)
            is_control = isinstance(event, State) and event.node.endswith(":0")
            if is_control and event.state == WAITING_FOR_FILE and left:
                number = left.pop()
                write_file(tmp_path, number, ROWS[number])

    events = Arriving()
    stream(events, until="day-3.npz", save_params=tmp_path / "end")
    assert passes(events) == [(1, 1, 5), (2, 6, 3), (3, 9, 4)]
    check_equal(tmp_path / "end", built[1])


def test_a_late_file_is_named_once_and_not_trained(stream, built, tmp_path):
    write_files(tmp_path)
    stream(until="now")
    write_file(tmp_path, 0, 40, name="day-0.npz")
    write_file(tmp_path, 4, 8)
    write_file(tmp_path, 5, 8)
    events: list[Event] = []
    assert stream(events, until="now").steps == 16
    late = [
        e.message for e in events if isinstance(e, NodeWarning) and "late" in e.message
    ]
    assert late == ["npz:clicks/day-0.npz is late; it is not trained"]
    write_file(tmp_path, 6, 8)
    events.clear()
    assert stream(events, until="now").steps == 18
    assert not [e for e in events if isinstance(e, NodeWarning) and "late" in e.message]


def test_a_damaged_file_ends_the_run_at_the_pass_before(stream, built, tmp_path):
    write_files(tmp_path)
    path = tmp_path / "clicks" / "day-2.npz"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"day-2.npz"):
        stream(until="now", checkpoint_every="1000")
    assert newest(tmp_path).step == 5
    path.write_bytes(whole)
    stream(until="now", save_params=tmp_path / "end")
    check_equal(tmp_path / "end", built[1])


def test_a_changed_file_of_an_open_pass_has_two_ways_out(stream, built, tmp_path):
    write_files(tmp_path)
    stream(steps=7)
    path = tmp_path / "clicks" / "day-2.npz"
    path.write_bytes(path.read_bytes() + b"more")
    events: list[Event] = []
    with pytest.raises(PlacerError, match=r"day-2.npz has changed since") as error:
        stream(events, until="now")
    assert not any(isinstance(each, NodeWarning) for each in events)
    assert "--skip-pass" in (error.value.hint or "")
    assert "4 rows" in (error.value.hint or "")
    os.unlink(path)
    events = []
    assert stream(events, until="now", skip_pass=True).steps == 11
    assert passes(events) == [(3, 8, 4)]
    (resumed,) = (each for each in events if isinstance(each, Resumed))
    assert (resumed.epoch, resumed.left_out) == (3, 4)
    assert resumed.last == "clicks/day-2.npz"
    assert {each.pass_end for each in events if isinstance(each, State)} == {0, 11}
    assert "with pass 3; 4 rows of pass 2 are left out" in format_output(resumed)
    with pytest.raises(PlacerError, match="leave out nothing"):
        stream(until="now", skip_pass=True)


def test_a_second_command_names_the_first_one(built, tmp_path):
    build, kept = built[0], tmp_path / "kept"
    plan = read_plan(build)
    with locked(kept):
        found = busy_folder(plan, build, Options(checkpoint=kept, until="now"))
        assert found is not None
        assert f"process {os.getpid()} on " in found
        with pytest.raises(InUseError, match="another run writes"):
            busy_folder(plan, build, Options(checkpoint=kept))
    assert busy_folder(plan, build, Options(checkpoint=kept)) is None


def test_asynchronous_workers_meet_at_the_end_of_each_pass(tmp_path):
    write_files(tmp_path)
    sgd = {"op": "sgd", "learning_rate": 0.05, "place": "/node:ps", "update": "async"}
    model = stream_spec(train={"optimizer": sgd})
    model["graph"][0]["ops"] = [
        {**op, **({"in": "h"} if op["name"] == "d" else {})}
        for op in model["graph"][0]["ops"]
        if op["name"] != "n"
    ]
    del model["train"]["clip"]
    build = build_stream(tmp_path, model)
    events: list[Event] = []
    assert run_stream(build, tmp_path, events, steps=7).steps == 7
    result = run_stream(build, tmp_path, events, until="now")
    assert (result.steps, result.passes) == (12, 2)
    assert passes(events) == [(1, 1, 5), (2, 6, 3), (2, 6, 3), (3, 9, 4)]
    assert set(newest(tmp_path).workers.values()) == {12}
    ends = [each for each in events if isinstance(each, Step) and each.epoch_metrics]
    assert [each.step for each in ends] == [5, 8, 12]
