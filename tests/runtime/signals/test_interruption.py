"""What signals do to a run that saves, by the state of the control node."""

from pathlib import Path
from threading import Event

import pytest
from support.real_runs import compile_small

from placer.errors import RunError
from placer.runtime.control.events import (
    WAITING_FOR_FILE,
    CheckpointSaved,
    NodeWarning,
    Resumed,
    Step,
)
from placer.runtime.control.options import Options
from placer.runtime.process import threads
from placer.runtime.process.threads import run_in_threads
from placer.runtime.signals.interruption import (
    NOTHING_KEPT,
    STOPS_WAITING,
    Decision,
    Interruption,
)
from placer.runtime.training_loop.loop import Training

FILE = Path("saved")


@pytest.mark.parametrize(
    ("state", "decision"),
    [
        ("connecting", Decision.END),
        ("reading rows", Decision.END),
        ("compiling", Decision.END),
        ("running", Decision.STOP),
        ("evaluating", Decision.STOP),
        ("saving", Decision.CONTINUE),
        ("writing", Decision.CONTINUE),
        ("done", Decision.CONTINUE),
    ],
)
def test_the_first_signal_stops_a_run_that_can_still_save(state, decision):
    interruption = Interruption(FILE)
    assert interruption.decide(0, state) is Decision.CONTINUE
    assert interruption.decide(1, state) is decision
    if decision is not Decision.END:  # it is decided once
        assert interruption.decide(1, state) is Decision.CONTINUE


def test_a_step_is_known_before_the_state_that_follows_from_it():
    interruption = Interruption(FILE)
    interruption.note(Step(1, 1, {}))
    assert interruption.decide(1, "compiling") is Decision.STOP


@pytest.mark.parametrize("state", ["running", "saving", "writing"])
def test_a_second_signal_ends_the_run(state):
    interruption = Interruption(FILE)
    interruption.decide(1, state)
    assert interruption.outcome(None).endswith("the file was not completely written")
    assert interruption.decide(2, state) is Decision.END
    assert interruption.outcome(None) == ("nothing was saved: a second signal arrived")


def test_nodes_have_a_limited_time_to_stop_and_any_time_to_save():
    interruption = Interruption(FILE, grace=-1.0)
    assert interruption.decide(1, "running") is Decision.STOP
    assert interruption.decide(1, "saving") is Decision.CONTINUE
    assert interruption.decide(1, "running") is Decision.END
    assert interruption.outcome(None).endswith("the nodes did not stop within -1 s")
    assert (
        interruption.cause == "it was interrupted: the nodes did not stop within -1 s"
    )


def test_the_time_to_stop_begins_when_the_last_checkpoint_is_written():
    interruption = Interruption(FILE, grace=0.0)
    assert interruption.decide(1, "writing a checkpoint") is Decision.STOP
    begun = interruption.stopping_since
    interruption.grace = 60.0
    assert interruption.decide(1, "writing a checkpoint") is Decision.CONTINUE
    assert interruption.stopping_since > begun
    interruption.grace = -1.0
    assert interruption.decide(1, "running") is Decision.END


@pytest.mark.parametrize(
    ("file", "can_save"), [(None, True), (FILE, False), (None, False)]
)
def test_a_signal_ends_a_run_that_cannot_save(file, can_save):
    interruption = Interruption(file)
    assert interruption.decide(1, "running", can_save=can_save) is Decision.END


@pytest.mark.parametrize(
    ("file", "steps", "failure", "text"),
    [
        (FILE, 3, None, "stopped after step 3; the parameters are in saved"),
        (FILE, 3, "boom", "stopped after step 3; the parameters are in saved"),
        (FILE, None, "boom", "the run had failed: boom"),
        (None, None, "boom", "the run had failed: boom"),
        (None, None, None, NOTHING_KEPT),
        (None, 3, "boom", ""),
    ],
)
def test_the_outcome_says_what_was_saved(file, steps, failure, text):
    assert Interruption(file).outcome(steps, failure) == text


def test_the_outcome_names_the_last_checkpoint():
    interruption = Interruption(checkpoints=Path("saved"))
    interruption.note(CheckpointSaved(2, "saved/step-000002"))
    assert interruption.outcome(2) == (
        "stopped after step 2; continue with --checkpoint saved --resume"
        " saved/step-000002"
    )
    assert interruption.outcome(None, "boom") == (
        "the run had failed: boom; continue with --checkpoint saved --resume"
        " saved/step-000002"
    )


def test_the_outcome_of_a_stream_without_a_step_names_its_resumed_checkpoint():
    interruption = Interruption(checkpoints=Path("saved"), names_folder=True)
    interruption.note(Resumed(8, "old/step-000008"))
    said, stops = [], []
    for state in (WAITING_FOR_FILE, "running"):
        interruption.stopping_since = None
        interruption.obey(
            1, state, said.append, stop=lambda: stops.append(1), end=lambda: None
        )
    assert said[0] == NodeWarning(STOPS_WAITING)
    assert "and save, within 600 s" in said[1].message
    assert stops == [1, 1]
    assert interruption.outcome(8) == (
        "stopped after step 8; continue with --checkpoint saved --resume old/step-000008"
    )
    interruption.explain(error := RunError("boom"))
    assert error.hint == "continue with --checkpoint saved --resume old/step-000008"


def test_the_command_of_a_stream_that_continues_in_its_folder_names_no_step():
    """It may be given again and again, such as from cron."""
    folder = Path("saved").resolve()
    interruption = Interruption(
        checkpoints=folder, names_folder=True, resume=Path("saved")
    )
    text = f"continue with --checkpoint {folder} --resume {folder}"
    assert interruption.how_to_continue == ""
    for event in (
        Resumed(8, f"{folder}/step-000008"),
        CheckpointSaved(9, f"{folder}/step-000009"),
    ):
        interruption.note(event)
        assert interruption.how_to_continue == text
        assert interruption.outcome(None, "boom") == f"the run had failed: boom; {text}"
    interruption = Interruption(
        checkpoints=folder, names_folder=True, resume=folder / "step-000008"
    )
    interruption.note(Resumed(8, f"{folder}/step-000008"))
    assert interruption.how_to_continue == f"{text}/step-000008"


def test_the_error_of_a_failed_run_ends_with_how_to_continue_it():
    interruption = Interruption(checkpoints=Path("saved"))
    error = RunError("boom", hint="help")
    interruption.explain(error)
    assert error.hint == "help"  # no step has ended: there was nothing to save
    interruption.has_steps = True
    interruption.explain(error)
    assert error.hint == (
        "help; this run saved no checkpoint in saved; save one every N steps with"
        " 'checkpoint_every' (--checkpoint-every N)"
    )
    interruption.note(CheckpointSaved(2, "saved folder/step-000002"))
    error = RunError("boom")
    interruption.explain(error)
    assert error.hint == (
        "continue with --checkpoint 'saved folder' --resume 'saved folder/step-000002'"
    )
    interruption.command = "placer train 'a model.yaml' --set train.epochs=9"
    assert interruption.how_to_continue == (
        "continue with placer train 'a model.yaml' --set train.epochs=9"
        " --checkpoint 'saved folder' --resume 'saved folder/step-000002'"
    )
    Interruption(FILE, has_steps=True).explain(error := RunError("boom"))
    assert error.hint is None


def test_the_limit_holds_until_the_last_node_has_stopped(tmp_path, monkeypatch):
    """The control node ends the last step, the other worker does not."""
    is_stuck, is_stopping, released = Event(), Event(), Event()
    run_step = Training._run_step

    def wait_and_run(self, number):
        if number == 3 and self.execution.me.name == "worker:0":
            is_stopping.wait()
        if number == 3 and self.execution.me.name == "worker:1":
            is_stuck.set()
            released.wait()
        return run_step(self, number)

    def watch(event):
        if isinstance(event, NodeWarning):
            is_stopping.set()

    monkeypatch.setattr(Training, "_run_step", wait_and_run)
    monkeypatch.setattr(threads, "INTERRUPT_TIMEOUT", 0.0)
    options = Options(steps=8, checkpoint=tmp_path / "checkpoints", grace=0.1)
    try:
        with pytest.raises(KeyboardInterrupt, match=r"did not stop within 0\.1 s"):
            run_in_threads(
                compile_small(tmp_path, workers=2),
                options,
                interrupts=lambda: int(is_stuck.is_set()),
                watch=watch,
            )
    finally:
        released.set()
