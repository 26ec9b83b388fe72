"""Callbacks get the steps, evaluations and epochs of a run in order, and can end it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.callback_runs import BATCH, ROWS, Recorder, compile_for_callbacks
from support.marks import slow_but
from support.real_runs import node_processes, process_environment, wait_for_exit
from support.small_models import two_layers

import placer
from placer.channel.in_process import memory_channels
from placer.checkpoint.folder import list_checkpoints
from placer.errors import PlacerError, RunError
from placer.runtime.callbacks.callbacks import (
    STOP,
    CallbackQueue,
    Record,
    check_callbacks,
)
from placer.runtime.control.events import WAITING, Event, State, Step
from placer.runtime.control.pace import (
    MAX_LEAD,
    ControlPace,
    Pace,
    ToldPace,
    make_pace,
)

pytestmark = pytest.mark.usefixtures("threads_watched")

WAYS = pytest.mark.parametrize(
    "in_process", [True, False], ids=["threads", "processes"]
)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_for_callbacks(tmp_path_factory.mktemp("several"))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_for_callbacks(tmp_path_factory.mktemp("two"), each=1)


@pytest.fixture
def build(request: pytest.FixtureRequest, several: Path, two: Path) -> Path:
    """A build of several nodes for threads, or of two for processes, which take longer."""
    call = getattr(request.node, "callspec", None)
    return several if call is not None and call.params.get("in_process") else two


class Calls:
    """A callback with one method, which is a function."""

    def __init__(self, hook: str, call: Callable[[placer.Record], object]) -> None:
        setattr(self, hook, call)


@WAYS
def test_callbacks_get_all_that_happened_in_order(
    build: Path, in_process: bool
) -> None:
    calls: list[Any] = []
    threads = set()
    both = [Recorder(calls, "a"), Recorder(calls, "b")]
    spy = Calls("on_step", lambda record: threads.add(threading.current_thread()))
    result = placer.launch(
        build, steps=6, in_process=in_process, callbacks=[*both, spy]
    )
    assert threads == {threading.current_thread()}
    seen = [(name, what, record.step, record.epoch) for name, what, record in calls]
    expected = []
    for step in range(1, 7):
        hooks = (
            ["step"] + ["evaluation"] * (step % 2 == 0) + ["epoch"] * (step % 3 == 0)
        )
        epoch = (step + 2) // 3
        expected += [(name, hook, step, epoch) for hook in hooks for name in "ab"]
    assert seen == expected
    of_a = [(what, record) for name, what, record in calls if name == "a"]
    steps = [record for what, record in of_a if what == "step"]
    assert [r.metrics for r in steps] == [line["metrics"] for line in result.history]
    assert [r.eval for r in steps] == [line.get("eval") for line in result.history]
    assert [r.seconds for r in steps] == sorted(r.seconds for r in steps)
    assert [r.time for r in steps] == sorted(r.time for r in steps)
    assert all(r.learning_rates == {"sgd": 0.1} for r in steps)
    evaluations = [record.eval for what, record in of_a if what == "evaluation"]
    assert evaluations == [line["eval"] for line in result.history if "eval" in line]
    epochs = [record for what, record in of_a if what == "epoch"]
    # The last batch of an epoch has fewer rows than the others.
    sizes = [BATCH, BATCH, ROWS - 2 * BATCH]
    losses = [record.metrics["loss"] for record in steps[3:]]
    mean = sum(n * loss for n, loss in zip(sizes, losses, strict=True)) / ROWS
    assert epochs[1].metrics["loss"] == pytest.approx(mean, rel=1e-12)
    assert epochs[1].metrics == result.metrics


@WAYS
def test_stop_ends_the_run_with_a_checkpoint_and_a_result(
    build: Path, in_process: bool, tmp_path: Path
) -> None:
    calls: list[Any] = []
    stop = Calls("on_evaluation", lambda record: STOP)
    result = placer.launch(
        build,
        steps=1_000_000,
        in_process=in_process,
        checkpoint=tmp_path / "saved",
        callbacks=[stop, Recorder(calls)],
    )
    assert 2 <= result.steps < 1_000_000
    steps = [record.step for _, what, record in calls if what == "step"]
    assert steps == list(range(1, result.steps + 1))
    assert (tmp_path / "saved" / f"step-{result.steps:06}").is_dir()
    last = placer.launch(
        build, steps=result.steps + 1, in_process=True, resume=tmp_path / "saved"
    )
    assert last.steps == result.steps + 1


@WAYS
def test_an_exception_of_a_callback_ends_the_run(build: Path, in_process: bool) -> None:
    def fail(record: placer.Record) -> None:
        raise ZeroDivisionError("my mistake")

    with pytest.raises(ZeroDivisionError, match="my mistake") as caught:
        placer.launch(
            build,
            steps=1_000_000,
            in_process=in_process,
            callbacks=[Calls("on_epoch", fail)],
        )
    assert caught.value.__notes__ == [
        "raised by the callback Calls.on_epoch after step 3; the run has been ended"
    ]
    assert not node_processes(build)
    assert not [t for t in threading.enumerate() if t.name.startswith("placer worker")]


@WAYS
def test_a_run_waits_for_a_slow_callback_and_stops_soon_after_it_says_so(
    build: Path, in_process: bool
) -> None:
    steps: list[int] = []

    def stop(record: placer.Record) -> object:
        time.sleep(0.005)  # slower than a step
        steps.append(record.step)
        return STOP if record.step == 20 else None

    result = placer.launch(
        build,
        steps=1_000_000,
        in_process=in_process,
        callbacks=[Calls("on_step", stop)],
    )
    # Some steps may begin until all nodes have agreed on the last one.
    assert 20 <= result.steps <= 20 + MAX_LEAD + 2
    assert steps == list(range(1, result.steps + 1))


def compile_free(folder: Path, update: str) -> Path:
    """Compile a model for two workers that do not wait for each other."""
    return compile_for_callbacks(
        folder, servers=1, epoch=80_000, every=10_000, update=update
    )


def steps_of_workers(checkpoints: Path) -> dict[str, int]:
    """Return the last step of each worker at the only checkpoint."""
    ((_, manifest),) = list_checkpoints(checkpoints)
    return dict(manifest.progress.workers)


class StopsTwoThatWait:
    """A callback that ends the run once two nodes, which are threads, wait for it.

    Attributes:
        held: the steps that each of them has done then.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.held: dict[type[Pace], int] = {}
        self._waiting: SimpleQueue[tuple[type[Pace], int]] = SimpleQueue()
        for kind in (ControlPace, ToldPace):
            patch.setattr(kind, "wait", self._noted(kind.wait))

    def _noted(self, wait: Callable[..., None]) -> Callable[..., None]:
        def noted(
            pace: Pace, done: int, is_over: Callable[[], bool], limit: float
        ) -> None:
            self._waiting.put((type(pace), done))
            wait(pace, done, is_over, limit)

        return noted

    def on_step(self, record: placer.Record) -> object:
        while len(self.held) < 2:
            kind, done = self._waiting.get(timeout=60)
            self.held[kind] = done
        return STOP


@pytest.mark.parametrize(
    "update", ["async", "half_async", "{geo: {every: 4}}", "{sync: {backup: 1}}"]
)
def test_workers_with_steps_of_their_own_wait_for_a_callback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: str
) -> None:
    stops = StopsTwoThatWait(monkeypatch)
    result = placer.launch(
        compile_free(tmp_path, update),
        steps=10_000,
        in_process=True,
        checkpoint=tmp_path / "saved",
        callbacks=[stops],
    )
    steps = steps_of_workers(tmp_path / "saved")
    if steps:  # with backup workers all end at the same step
        assert sorted(steps.values()) == sorted(stops.held.values())
    assert result.steps <= max(stops.held.values()) + 1


def test_frozen_first_layers_do_not_run_ahead_of_a_callback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their node receives nothing, so that it waits for no other node."""
    stops = StopsTwoThatWait(monkeypatch)
    rows = np.zeros((16_000, 4), np.float32)
    np.savez(tmp_path / "rows.npz", x=rows, y=rows)
    spec = two_layers(
        nodes="{worker: {count: 1}, heter: {count: 1}}",
        width=4,
        first="/node:heter/cpu",
        second="/node:worker/cpu",
    )
    spec += 'parameters: [{match: "h.*", trainable: false}]\n'
    (tmp_path / "small.yaml").write_text(spec)
    placer.compile(tmp_path / "small.yaml", tmp_path / "build")
    result = placer.launch(tmp_path / "build", in_process=True, callbacks=[stops])
    assert stops.held == {ControlPace: MAX_LEAD, ToldPace: MAX_LEAD}
    assert result.steps == MAX_LEAD


@pytest.mark.parametrize("update", slow_but(["async"], ["async", "{geo: {every: 4}}"]))
def test_processes_with_steps_of_their_own_wait_for_callbacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: str
) -> None:
    """The callbacks have no step before both workers have reported that they wait."""
    held: dict[str, int] = {}

    def add(
        self: CallbackQueue, event: Event, original: Any = CallbackQueue.add
    ) -> None:
        original(self, event)
        if isinstance(event, State) and event.state == WAITING:
            held.setdefault(event.node, event.step)

    def call_next(self: CallbackQueue, original: Any = CallbackQueue.call_next) -> bool:
        return len(held) == 2 and original(self)

    monkeypatch.setattr(CallbackQueue, "add", add)
    monkeypatch.setattr(CallbackQueue, "call_next", call_next)
    placer.launch(
        compile_free(tmp_path, update),
        steps=10_000,
        checkpoint=tmp_path / "saved",
        callbacks=[Calls("on_step", lambda record: STOP)],
    )
    assert steps_of_workers(tmp_path / "saved") == held


def test_workers_keep_their_lead_while_callbacks_are_slow() -> None:
    channels = memory_channels(["worker:0", "worker:1"])
    pace = ControlPace(channels["worker:0"], {"worker:1": False}, synchronous=False)
    told = ToldPace(channels["worker:1"], "worker:0")
    never = threading.Event().is_set

    def hear() -> None:
        told._changed.acquire()
        assert told._changed.wait_for(lambda: told._arrived, 60)
        told._changed.release()

    with pace:
        for _ in range(MAX_LEAD):
            assert not pace.is_ahead(10)
            assert not told.is_ahead(20)
            pace.step_reported()
        hear()
        for called in range(1, 4):
            assert pace.is_ahead(10 + called - 1)
            assert told.is_ahead(20 + called - 1)
            wait = partial(told.wait, 20 + called - 1, never, 60)
            waiting = threading.Thread(target=wait)
            waiting.start()
            pace.steps_called()
            waiting.join(60)
            assert not waiting.is_alive()
            pace.wait(10 + called - 1, never, 60)
            pace.step_reported()
        pace.steps_called(MAX_LEAD)  # they have caught up
        hear()
        assert not pace.is_ahead(100)
        assert not told.is_ahead(100)
        for _ in range(MAX_LEAD):
            pace.step_reported()
        hear()
        assert told.is_ahead(100)
    hear()
    assert not told.is_ahead(101)  # the control node has done its last step


def test_synchronous_the_steps_of_the_control_node_count() -> None:
    (channel,) = memory_channels(["worker:0"]).values()
    pace = ControlPace(channel)
    assert not pace.is_ahead(MAX_LEAD - 1)
    assert pace.is_ahead(MAX_LEAD)
    begin = time.monotonic()
    pace.wait(
        MAX_LEAD, bool, limit=0.01
    )  # with half of the deadline, peers do not fail
    assert time.monotonic() - begin < 60
    assert pace.is_ahead(MAX_LEAD)
    pace.steps_called()
    pace.wait(MAX_LEAD, bool, limit=60)


def test_with_steps_of_its_own_the_reported_steps_count() -> None:
    """Backup workers and rounds: the other worker may not have begun its first step."""
    names = ["worker:0", "worker:1"]
    plan: Any = SimpleNamespace(
        nodes=[SimpleNamespace(name=name) for name in names],
        control=names[0],
        is_synchronous=True,
        worker_of=lambda name: name,
        step_edges=(),
    )
    pace = make_pace(plan, memory_channels(names)[names[0]])
    assert pace is not None
    assert not pace.is_ahead(MAX_LEAD)


def test_a_mistake_in_the_thread_that_tells_the_pace_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise TypeError("not a message")

    monkeypatch.setattr("placer.runtime.control.pace.send_json", fail)
    channel = memory_channels(["worker:0", "worker:1"])["worker:0"]
    with (pace := ControlPace(channel, {"worker:1": True})):
        pace.steps_called()
    assert channel.aborted is not None
    assert channel.aborted.what == "not a message"


@pytest.mark.parametrize("is_control", [True, False])
def test_a_wait_ends_when_the_run_fails_or_stops(is_control: bool) -> None:
    channels = memory_channels(["worker:0", "worker:1"])
    told = ToldPace(channels["worker:1"], "worker:0", always=True)
    pace: Pace = ControlPace(channels["worker:0"]) if is_control else told
    over = threading.Event()
    waiting = threading.Thread(target=pace.wait, args=(MAX_LEAD, over.is_set, 120))
    waiting.start()
    over.set()
    pace.wake()
    waiting.join(60)
    assert not waiting.is_alive()
    assert pace.is_ahead(MAX_LEAD)


def test_a_callback_that_is_slower_than_the_end_of_the_run_gets_all_steps(
    build: Path,
) -> None:
    steps: list[int] = []

    def wait_for_the_end(record: placer.Record) -> None:
        wait_for_exit(node_processes(build).values())
        steps.append(record.step)

    placer.launch(build, steps=MAX_LEAD, callbacks=[Calls("on_step", wait_for_the_end)])
    assert steps == list(range(1, MAX_LEAD + 1))


HANGING = """
import sys, threading
import placer

class Hangs(placer.Callback):
    def on_step(self, record):
        print("hangs", flush=True)
        threading.Event().wait()

build, in_process, saved = sys.argv[1:]
try:
    placer.launch(build, steps=1_000_000, callbacks=[Hangs()], save_params=saved or None,
                  in_process=bool(in_process), return_params=False)
except KeyboardInterrupt as interrupt:
    print("interrupted", interrupt, flush=True)
"""


@pytest.mark.parametrize(
    ("in_process", "saves"),
    slow_but([(True, True), (False, False)], product([True, False], repeat=2)),
)
def test_ctrl_c_that_ends_the_run_interrupts_a_callback_that_hangs(
    build: Path, tmp_path: Path, in_process: bool, saves: bool
) -> None:
    arguments = ["1" * in_process, str(tmp_path / "saved") if saves else ""]
    command = [sys.executable, "-c", HANGING, str(build), *arguments]
    env = process_environment()
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "hangs\n"
        run.send_signal(signal.SIGINT)
        # Of signals at once, one counts. One that arrives in the last microseconds before
        # a thread sleeps on a lock is handled by Python after the sleep only.
        while run.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                run.wait(0.4 if saves else 10)
            run.send_signal(signal.SIGINT)
        text, _ = run.communicate(timeout=60)
    assert text.startswith("interrupted")
    assert not node_processes(build)


def test_the_failure_of_a_node_is_raised_and_not_hidden_by_callbacks(
    build: Path, tmp_path: Path
) -> None:
    calls: list[Any] = []
    history = Path("/dev/full")
    with pytest.raises(RunError, match="cannot write the history"):
        placer.launch(build, steps=6, history=history, callbacks=[Recorder(calls)])


def test_what_is_no_callback_is_refused_before_the_run(build: Path) -> None:
    for wrong, message in [
        (3, "'callbacks' must be a list of callbacks, not int"),
        ([Recorder], "callbacks[0] is the class Recorder, not an object"),
        ([{}], "callbacks[0], of type dict, has no method on_step, on_evaluation or"),
    ]:
        with pytest.raises(PlacerError) as caught:
            placer.launch(build, callbacks=wrong)  # type: ignore[arg-type]
        assert message in caught.value.message


def test_a_method_that_would_never_be_called_is_refused() -> None:
    class Finished(placer.Callback):
        on_time = False

        def on_epoch_finish(self, record: Record) -> None:
            """Is never called."""

    with pytest.raises(PlacerError) as caught:
        check_callbacks([Finished()])
    assert str(caught.value) == (
        "callbacks[0], of type Finished, has the method 'on_epoch_finish', which is never"
        " called\n  hint: did you mean 'on_epoch'? A method that begins with 'on_' is"
        " on_step, on_evaluation or on_epoch"
    )


def test_other_events_than_steps_are_not_kept() -> None:
    queue = CallbackQueue([Recorder([])])
    queue.add(State("worker:0", "running"))
    assert not queue.has_steps
    queue.add(Step(1, 1, {}))
    assert queue.has_steps
    queue.close()
    queue.add(Step(2, 1, {}))
    assert not queue.call_next()
