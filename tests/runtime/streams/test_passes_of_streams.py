"""Runs over streams of files: the bits of their passes, and how they stop and go on."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections import deque
from math import inf
from pathlib import Path
from socket import gethostname
from types import SimpleNamespace

import pytest
import yaml
from support.checkpointed import check_equal
from support.published import Follower
from support.streamed import build_stream, run_stream, stream_spec, write_file

from placer.checkpoint.folder import (
    CLAIM,
    InUseError,
    claimed,
    list_checkpoints,
    locked,
)
from placer.command.cli import main
from placer.errors import CheckpointError, DataError, PlacerError
from placer.launcher import continued_run
from placer.launcher.checks import claimed_folder
from placer.plan.plan import read_plan
from placer.plan.settings.data.stream_pass import StreamPass
from placer.readers.streams import file_stream
from placer.runtime.control.common_step import Action
from placer.runtime.control.events import (
    WAITING_FOR_FILE,
    Event,
    NodeWarning,
    Notice,
    PassBegun,
    Resumed,
    State,
    Step,
    format_output,
)
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads
from placer.runtime.training_loop import chosen_passes
from placer.runtime.training_loop.chosen_passes import ChosenPasses
from placer.runtime.training_loop.lane_passes import PASSES_ENDED
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


def test_only_a_command_of_cron_may_have_nothing_to_train(
    stream, built, tmp_path, capsys
):
    events: list[Event] = []
    assert stream(events, until="now").steps == 0
    wrong = "nothing is left to train after step 0: no file matches npz:clicks/*.npz"
    assert NodeWarning(wrong) in events  # the glob may be wrong
    write_files(tmp_path)
    stream(steps=12)
    said = {}
    for options in ({"until": "now"}, {"until": "clicks/day-3.npz"}, {"steps": 12}):
        events.clear()
        assert stream(events, **options).steps == 12
        texts = [e for e in events if isinstance(e, NodeWarning | Notice)]
        said[next(iter(options.values()))] = texts
    nothing = "nothing is left to train after step 12: "
    allowed = f"{nothing}all files that 'until' (--until) allows are trained"
    assert said["now"] == [Notice(allowed)]
    assert said["clicks/day-3.npz"] == [NodeWarning(allowed)]
    assert said[12][0].message.startswith(nothing)
    assert isinstance(said[12][0], NodeWarning)
    kept = [f"--{each}={tmp_path / 'kept'}" for each in ("checkpoint", "resume")]
    words = ["launch", str(built[0]), "--in-process", "--until=now", *kept]
    for quiet, out in ((["--quiet"], ""), ([], "12 steps; nothing was left to train")):
        with pytest.raises(SystemExit) as ended:
            main([*words, *quiet])
        assert ended.value.code == 0
        printed = capsys.readouterr()
        assert out in printed.out
        assert bool(printed.out + printed.err) == (not quiet)


def test_a_command_of_cron_before_the_first_pass_leaves_nothing(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    write_file(tmp_path, 1, 1)
    Path("m.yaml").write_text(yaml.safe_dump(stream_spec(), sort_keys=False))
    words = ["train", "m.yaml", "--in-process", "--until=now"]
    words += ["--checkpoint=kept", "--resume=kept"]
    for quiet in (["--quiet"], []):
        with pytest.raises(SystemExit) as ended:
            main([*words, *quiet])
        assert ended.value.code == 0
        printed = capsys.readouterr()
        removed = "no step was done, so the folder runs/resumed-1 was removed"
        assert (removed in printed.err) is not bool(quiet)
        assert bool(printed.out + printed.err) == (not quiet)
        assert not Path("runs").exists()


def test_a_stop_ends_the_wait_for_a_file(built, stream, tmp_path, monkeypatch):
    """Without files, after two of them, while a file is read, and before the first pass of a later
    command."""
    kept, is_free = tmp_path / "kept", threading.Event()
    read = file_stream.read_facts

    def read_slowly(request):
        if request.source.path.endswith("day-3.npz"):
            is_free.wait(10)
        return read(request)

    monkeypatch.setattr(file_stream, "read_facts", read_slowly)
    monkeypatch.setattr(chosen_passes, "END_LIMIT", 0.0)
    for files, steps in (([], 0), ([1, 2], 8), ([], 0), ([3], 0), ([], 4), ([], 0)):
        for number in files:
            write_file(tmp_path, number, ROWS[number])
        events: list[Event] = []
        before = len(list_checkpoints(kept)) if kept.exists() else 0
        waits = [False]

        def watch(event: Event, events=events, waits=waits) -> None:
            events.append(event)
            waits[0] |= isinstance(event, State) and event.state == WAITING_FOR_FILE

        run_in_threads(
            built[0],
            Options(
                checkpoint=kept,
                resume=kept,
                checkpoint_every="1000",
                save_params=tmp_path / "end",
            ),
            watch=watch,
            interrupts=lambda waits=waits: int(waits[0]),
        )
        if files == [3]:
            is_free.set()
        assert sum(steps for _, _, steps in passes(events)) == steps
        # The pass is saved before the wait, and once.
        after = len(list_checkpoints(kept))
        assert after - before == (1 if steps else 0)
        if steps == 4:
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


def test_a_command_that_has_trained_its_passes_says_so():
    ended = object.__new__(ChosenPasses)
    ended._files = SimpleNamespace(passes_left=0)
    assert ended.why_no_pass() == (PASSES_ENDED, True)


@pytest.mark.parametrize("until", ["now", None])
def test_a_pass_of_now_is_taken_when_the_look_after_it_is_over(until):
    """Only that look says whether the pass is the last one."""
    taken, found = object.__new__(ChosenPasses), StreamPass(1, ())
    taken._execution = SimpleNamespace(options=SimpleNamespace(until=until))
    taken._files = SimpleNamespace(listing_seconds=0.0)
    taken._chosen, taken._looked = deque(), -inf

    class Looking:
        """A thread that finds a pass while `take` waits, and then looks for the one after it."""

        is_over, begin, check = True, print, lambda self: None

        def join(self, seconds):
            if seconds == 5 and not taken._chosen:
                taken._chosen.append(found)
                self.is_over = False
            return self.is_over

    taken._threads = Looking()
    if until == "now":
        assert taken.take(5) is None
        assert taken.take(5) is None
        taken._threads.is_over = True
    assert taken.take(5) is found


def test_a_late_file_is_named_once_and_not_trained(stream, built, tmp_path):
    write_files(tmp_path)
    stream(until="now")
    write_file(tmp_path, 0, 40, name="day-0.npz")
    text = "npz:clicks/day-0.npz is late; it is not trained"
    nothing: list[Event] = []
    stream(nothing, until="now")  # it trains nothing, and does not keep the name
    assert Notice(text) in nothing
    assert not any(isinstance(each, NodeWarning) for each in nothing)
    write_file(tmp_path, 4, 8)
    write_file(tmp_path, 5, 8)
    events: list[Event] = []
    other = build_stream(tmp_path, stream_spec("npz:./clicks/*.npz"))  # the same files
    assert run_stream(other, tmp_path, events, until="now").steps == 16
    late = [
        e.message for e in events if isinstance(e, NodeWarning) and "late" in e.message
    ]
    assert late == ["npz:./clicks/day-0.npz is late; it is not trained"]
    trained = [f"./clicks/day-{number}.npz" for number in range(1, 6)]
    assert [*newest(tmp_path).stream.trained] == trained
    write_file(tmp_path, 6, 8)
    events.clear()
    assert stream(events, until="now").steps == 18
    assert not [e for e in events if isinstance(e, NodeWarning) and "late" in e.message]
    assert [e.last for e in events if isinstance(e, PassBegun)] == ["clicks/day-6.npz"]
    # It may also be found by a command that ends a pass.
    write_file(tmp_path, 7, 8)
    stream(steps=19)
    write_file(tmp_path, 0, 40, name="day-0b.npz")
    for steps, kind in ((20, [NodeWarning]), (20, [])):
        events.clear()
        assert stream(events, until="now").steps == steps
        messages = [e for e in events if isinstance(e, NodeWarning | Notice)]
        assert [type(e) for e in messages if "late" in e.message] == kind


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
    later = (tmp_path / "clicks" / "day-3.npz").rename(tmp_path / "later")
    with pytest.raises(PlacerError, match="--skip-pass needs a later pass: all files"):
        stream(until="now", skip_pass=True)
    later.rename(tmp_path / "clicks" / "day-3.npz")
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
    events = []
    earlier = list_checkpoints(tmp_path / "kept")[-1][0]
    assert stream(events, steps=7, resume=earlier).steps == 7
    back = "the run goes back from step 11, the newest checkpoint, to step 5"
    assert back in [each.message for each in events if isinstance(each, NodeWarning)]


def test_a_second_command_names_the_first_one(built, tmp_path, monkeypatch):
    plan, kept = read_plan(built[0]), tmp_path / "kept"

    def check_busy():
        with pytest.raises(InUseError) as busy, claimed_folder(plan, kept):
            pass
        who = f"process {os.getpid()} on {gethostname()}"
        said = f"another run writes checkpoints to '{kept}': {who}"
        assert (busy.value.message, busy.value.folder) == (said, kept)

    opened = Path.open

    def refuse(path, mode="r", **more):
        if path.name == CLAIM and mode != "rb":
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, mode, **more)

    with locked(kept):
        check_busy()
    # A command that has just begun, whose nodes have not locked the folder yet.
    with claimed_folder(plan, kept):
        check_busy()
        with locked(kept):
            check_busy()
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", refuse)  # the claim of another user
            check_busy()
    monkeypatch.setattr(Path, "open", refuse)
    with claimed_folder(plan, kept):
        pass
    with (
        pytest.raises(CheckpointError, match="other': Permission denied"),
        claimed_folder(plan, tmp_path / "other"),
    ):
        pass


def test_a_command_claims_the_folder_of_the_run_that_it_continues(
    tmp_path, monkeypatch, capsys
):
    write_file(tmp_path, 1, ROWS[1])
    model = stream_spec(train={"checkpoint": {"keep": 2}})
    spec, run = tmp_path / "s.yaml", tmp_path / "runs" / f"{model['name']}-1"
    spec.write_text(yaml.safe_dump(model, sort_keys=False))
    monkeypatch.chdir(tmp_path)

    def train(*words):
        with pytest.raises(SystemExit) as ended:
            main(["train", str(spec), "--in-process", *words])
        files = {*tmp_path.rglob("*")}
        return ended.value.code, *capsys.readouterr(), files

    status, *_, files = train("--until=now")
    kept = run / "checkpoints"
    assert (status, kept.is_dir()) == (0, True)
    again = "--until=now", f"--resume={kept}"
    # Errors in the options come before the claim, and leave no folder.
    for words, message in (
        (("--checkpoint=new", "--resume=tpyo"), "'tpyo' does not exist"),
        (("--checkpoint=new", "--until=now", "--passes=3"), "(--passes)"),
        (("--out=o", "--checkpoint=o/build/new", "--until=now"), "o/build"),
    ):
        status, _, error, now = train(*words)
        assert (status, now) == (2, files)
        assert message in error
    with claimed(kept):
        files = {*tmp_path.rglob("*")}
        status, out, error, now = train(*again, "--json")
        found = json.loads(out)
        assert (found["steps"], found["busy"]) == (0, str(kept))
        assert (status, now) == (0, files)
        assert error.endswith("; nothing to do\n")
        # A run that goes on is not continued: the command has the folder of a new one.
        monkeypatch.setattr(continued_run, "is_running", lambda folder: True)
        assert train(*again, "--quiet") == (0, "", "", files)
        status, out, error, now = train(f"--resume={kept}", "--passes=1")
        assert (status, out, now) == (1, "", files)
        assert f"another run writes checkpoints to '{kept}'" in error


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


def test_each_pass_of_a_stream_is_published(tmp_path):
    """With an interval of time, the rows of a pass are published when the run waits."""
    model = stream_spec(train={"publish": {"every": "pass", "keep": 99}})
    model["predict"] = {"outputs": ["chance"]}
    ops = model["graph"][0]["ops"]
    ops.append({"name": "chance", "op": "sigmoid", "in": "logit"})
    built = build_stream(tmp_path, model)
    for number in (1, 2):
        write_file(tmp_path, number, 22)
    follower = Follower(tmp_path / "serving")
    options = Options(
        checkpoint=tmp_path / "kept",
        resume=tmp_path / "kept",
        publish=follower.folder,
        until="now",
    )
    run_in_threads(built, options, watch=follower)
    assert follower.kinds == [(True, 5), (False, 10)]
    follower.check(tmp_path / "kept")
    write_file(tmp_path, 3, 22)
    run_in_threads(built, options, watch=follower)
    assert follower.kinds[2:] == [(False, 15)]
    assert follower.served.state.epoch == 3
    run_in_threads(built, options, watch=follower)  # no file is new
    assert len(follower.events) == 3
