"""The rules by which a run with `--restarts` ends instead of going on."""

from __future__ import annotations

import os
import re
import signal

import pytest
from support.faulty_runs import Fault, Run

import placer
from placer.checkpoint.attempts import (
    ATTEMPTS,
    AttemptBegun,
    AttemptFailed,
    read_attempts,
)
from placer.checkpoint.folder import list_checkpoints
from placer.errors import RunError
from placer.runtime.control.events import NodeWarning, Recovered

ALWAYS = {"always": True}


def failed(small, *faults: Fault, run: Run | None = None, **options) -> str:
    """Return the error of a run with faults."""
    small.prepare(faults)
    with pytest.raises(RunError) as error:
        small.go_on(run, **options)
    return str(error.value)


def test_a_run_ends_after_attempts_that_get_no_further(small):
    text = failed(small, Fault("ps:0", "step 4, call 5: update", **ALWAYS), restarts=1)
    kept = read_attempts(small.files / "checkpoints")
    begun = [each.step for each in kept if isinstance(each, AttemptBegun)]
    # The checkpoint of step 3 may not be complete when the process is killed.
    step = begun[-1]
    assert step in (2, 3)
    assert begun[-4] < step
    assert begun[-3:] == [step, step, step]  # the last one has only begun
    why = f"failed 2 times in a row after step {step}, with 1 restart"
    assert f"{why}: was killed by SIGKILL" in text
    assert isinstance(kept[-1], AttemptFailed)
    assert kept[-1].what.startswith(f"ps:0 {why}")


def test_the_same_error_at_the_same_step_ends_a_run_at_the_second_time(small):
    run = Run()
    fault = Fault("worker:1", "step 4, call 2: receive", "raise no such row", **ALWAYS)
    text = failed(small, fault, run=run, restarts=5)
    assert "ValueError: no such row" in text
    assert "failed again at the same step, with the same error" in text
    # The launcher may learn of the second failure before it knows that all nodes train again.
    assert [type(each) for each in run.events].count(Recovered) <= 1


def test_an_error_before_the_first_step_of_the_first_attempt_ends_a_run(small):
    run = Run()
    fault = Fault("worker:1", "state compiling", "raise wrong shapes")
    text = failed(small, fault, run=run)
    assert "ValueError: wrong shapes" in text
    assert "row" not in text
    assert not [each for each in run.events if isinstance(each, Recovered)]


def test_a_process_that_does_not_come_up_ends_a_run(small):
    text = failed(small, Fault("ps:1", "program", **ALWAYS), restarts=1)
    assert "ps:1 was killed by SIGKILL" in text
    assert "it has failed 2 times before it joined" in text


class At(placer.Callback):
    """Calls a function once, at the first record of a step."""

    def __init__(self, step: int, call) -> None:
        self.step, self.call = step, call

    def on_step(self, record: placer.Record) -> object:
        return self.call() if record.step == self.step else None


@pytest.mark.slow
def test_an_error_of_a_callback_ends_a_run(small):
    def fail():
        raise KeyError("callback")

    small.prepare()
    with pytest.raises(KeyError, match="callback"):
        small.go_on(callbacks=[At(3, fail)])
    kept = read_attempts(small.files / "checkpoints")
    assert not [each for each in kept if isinstance(each, AttemptFailed)]


@pytest.mark.slow
def test_a_loss_that_is_not_finite_ends_a_run(small):
    run = Run()
    fault = Fault("worker:1", "step 4, call 6: record", "spoil nan")
    text = failed(small, fault, run=run)
    assert "the loss 'loss' is nan after step 4" in text
    assert not [each for each in run.events if isinstance(each, Recovered)]


def test_a_stop_of_a_callback_survives_a_crash(small, whole):
    """The control node is killed when it has received the order, and before all nodes have
    stopped after a step."""
    run = Run()
    small.prepare([Fault("worker:0", "state saving")])
    stop = At(5, lambda: placer.STOP)
    run = small.go_on(run, callbacks=[run.seen, stop])
    steps = run.result.steps
    assert 5 <= steps < 24
    assert run.seen.steps == [*range(1, steps + 1)]
    assert run.history == whole.history[:steps]
    assert len(run.restarts) == 1
    ((_, manifest), *_) = list_checkpoints(small.files / "checkpoints")
    assert manifest.progress.step == steps


@pytest.mark.slow
def test_a_signal_survives_a_crash(small, whole):
    run = Run()
    small.prepare([Fault("ps:0", "state saving")])
    signals = At(5, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(SystemExit):
        small.go_on(run, callbacks=[run.seen, signals])
    steps = run.seen.steps[-1]
    assert not run.undone
    assert run.seen.steps == [*range(1, steps + 1)]
    assert run.history == whole.history[:steps]
    ((_, manifest), *_) = list_checkpoints(small.files / "checkpoints")
    assert 5 <= manifest.progress.step == steps < 24


@pytest.mark.slow
def test_a_signal_while_steps_are_repeated_stops_at_the_furthest_step(small, whole):
    run = Run()
    small.prepare([Fault("ps:0", "step 20, call 1")])

    def interrupt(event: object) -> None:
        if isinstance(event, Recovered):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit):
        small.go_on(run, watch=interrupt, checkpoint_every="1h", steps=2000)
    steps = run.seen.steps[-1]
    assert run.seen.steps == [*range(1, steps + 1)]
    ((_, manifest), *_) = list_checkpoints(small.files / "checkpoints")
    assert 19 <= steps == manifest.progress.step < 2000


@pytest.mark.slow
def test_an_interrupt_while_a_run_recovers_ends_it_at_once(small):
    """A node does not come up again, so the other nodes wait for it."""
    run = Run()
    small.prepare(
        [
            Fault("ps:1", "step 4, call 2: send"),
            Fault("ps:1", "before resume", "freeze"),
        ]
    )

    def interrupt(event: object) -> None:
        if isinstance(event, NodeWarning) and "all nodes go back" in event.message:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as error:
        small.go_on(run, watch=interrupt)
    assert re.search(r"checkpoints/step-00000[123]", str(error.value))


@pytest.mark.slow
def test_a_repeated_step_with_other_metrics_is_one_warning(small):
    """The worker records a wrong loss from step 3 on, before the control node is killed."""
    faults = [
        Fault("worker:1", f"step {step}, call 6: record", "spoil 2")
        for step in (3, 4, 5)
    ]
    kill = Fault("worker:0", "step 6, call 6: record")
    run = small.run(*faults, kill, checkpoint_every="1h", steps=8)
    (warning,) = (each for each in run.warnings if "other metrics" in each)
    assert warning.startswith("the repeated step 3 has other metrics than before")
    assert len(run.seen.steps) == 8


@pytest.mark.slow
def test_the_folder_of_another_run_is_not_adopted(small):
    """The first attempt dies before it has locked the folder."""
    small.run(steps=2)
    before = (small.files / "checkpoints" / ATTEMPTS).read_bytes()
    small.plant([Fault("worker:0", "before begin_attempt")])
    with pytest.raises(placer.PlacerError, match="checkpoints of another run"):
        small.go_on(steps=4)
    assert (small.files / "checkpoints" / ATTEMPTS).read_bytes() == before
