"""A run as a job of an engine, here one of another package."""

from __future__ import annotations

import os
import signal

import pytest
from support.kept_runs import find_runs
from support.real_runs import compile_small

import placer
from placer.errors import PlacerError, RunError
from placer.runtime.control.events import NodeWarning, Output, Step

pytestmark = pytest.mark.usefixtures("engine_here")


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    return compile_small(tmp_path_factory.mktemp("small"))


def test_the_events_and_the_result_are_those_of_a_local_run(build, tmp_path):
    events = []
    on = placer.OnEngine("here", {"note": "its turn"})
    saved = tmp_path / "saved.safetensors"
    logs = tmp_path / "logs"
    result = placer.launch(
        build, on=on, steps=7, save_params=saved, watch=events.append, logs=logs
    )
    run = find_runs(build.parent / "runs")[-1]
    assert (run.end.ended, run.end.metrics) == ("finished", result.metrics)
    assert [line["step"] for line in run.history()] == [*range(1, 8)]
    local = placer.launch(build, steps=7, in_process=True)
    assert result.metrics == local.metrics
    assert [each["metrics"] for each in result.history] == [
        each["metrics"] for each in local.history
    ]
    assert [e.step for e in events if isinstance(e, Step)] == [*range(1, 8)]
    shown = [event.text for event in events if isinstance(event, Output)]
    assert shown == [
        "the job here keeps running if this launcher is killed; end it with: kill it",
        f"logs in {logs}",
        "waits: its turn",
    ]
    assert saved.exists()
    assert "ps:0" in (logs / "ps-0.log").read_text()
    assert (logs / "key").stat().st_mode & 0o777 == 0o600


def test_a_callback_ends_a_run_that_saves_nothing(build, tmp_path):
    class StopAtThree:
        def on_step(self, record):
            return placer.STOP if record.step == 3 else None

    result = placer.launch(
        build, on="here", steps=10**6, callbacks=[StopAtThree()], logs=tmp_path
    )
    assert 3 <= result.steps < 10**6


def test_a_killed_node_is_the_root_cause(build, tmp_path):
    def kill(event):
        if isinstance(event, Step) and event.step == 3:
            for entry in os.listdir("/proc"):
                if entry.isdigit() and is_server(entry):
                    os.kill(int(entry), signal.SIGKILL)

    def is_server(process):
        try:
            with open(f"/proc/{process}/environ", "rb") as file:
                variables = file.read().split(b"\0")
            with open(f"/proc/{process}/cmdline", "rb") as file:
                words = file.read()
        except OSError:
            return False
        return b"PLACER_NODE=ps:0" in variables and str(tmp_path).encode() in words

    with pytest.raises(RunError, match=r"^ps:0 was killed by SIGKILL") as caught:
        placer.launch(build, on="here", steps=10**6, watch=kill, logs=tmp_path / "logs")
    assert f"host: {os.uname().nodename}" in str(caught.value)
    end = find_runs(build.parent / "runs")[-1].end
    assert (end.ended, end.error) == ("failed", str(caught.value))


def test_a_job_that_cannot_be_followed_is_named_after_its_warnings(build, tmp_path):
    events = []
    on = placer.OnEngine("here", {"silent": True, "note": "too long"})
    with pytest.raises(RunError, match=r"^nothing is heard of the job$"):
        placer.launch(build, on=on, steps=10**6, logs=tmp_path, watch=events.append)
    assert NodeWarning("waits: too long") in events


def test_nothing_stays_of_a_job_that_is_refused(build, tmp_path):
    on = placer.OnEngine("here", {"note": "refused"})
    with pytest.raises(RunError, match="the job was refused"):
        placer.launch(build, on=on, logs=tmp_path / "logs")
    assert not [*(tmp_path / "logs").iterdir()]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("hear", {}, "unknown engine 'hear'\n  hint: did you mean 'here'"),
        ("none", {}, "is not an engine: 'json' has no 'OPTIONS'"),
        ("here", {"notes": "x"}, "here has no option 'notes'\n  hint: did you mean"),
        (
            "here",
            {"silent": "perhaps"},
            "'silent' must be true or false, not 'perhaps'",
        ),
        ("here", {"note": "a\nb"}, "'note' contains unprintable characters"),
        ("here", {"note": 3}, "'note' must be a text, not '3'"),
    ],
)
def test_what_there_is_not_is_an_error(name, options, message):
    with pytest.raises(PlacerError) as caught:
        placer.OnEngine(name, options)
    assert message in str(caught.value)
