"""What is said of a job that the launcher cannot end, and what is left of one that it
cannot follow."""

from __future__ import annotations

import os
import signal
import threading
from types import SimpleNamespace

import pytest
from support.real_runs import compile_small

import placer
from placer.errors import PlacerError, RunError
from placer.launcher import engine_job, supervise
from placer.runtime.control.events import NodeWarning
from placer.runtime.signals import signals


class WatchedError(Exception):
    """What the user's function raises."""


class Stuck:
    """A job that does not end, and cannot be cancelled."""

    title = "job 7"
    cancel_command = "end 7"
    folder = None

    def __init__(self):
        self.has_ended = threading.Event()
        self.is_refused = True
        self.is_broken = False
        self.was_cancelled = False

    def cancel(self):
        self.was_cancelled = True
        if self.is_refused:
            raise OSError("the engine is silent")


@pytest.fixture
def job(monkeypatch):
    made = Stuck()

    def watch(job):
        if job.is_broken:
            raise ValueError("what is this")
        job.has_ended.wait()
        yield from ()

    engine = SimpleNamespace(
        OPTIONS=(),
        write=lambda request, options: {},
        submit=lambda folder, request, options: made,
        watch=watch,
    )
    monkeypatch.setattr(engine_job, "find_engine", lambda name: engine)
    yield made
    made.has_ended.set()


def test_a_job_that_may_still_run_is_named(job, tmp_path):
    build, events = compile_small(tmp_path), []

    def watch(event):
        events.append(event)
        if len(events) == 1:
            raise WatchedError

    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(WatchedError):
        placer.launch(build, on="engine", logs=tmp_path / "logs", watch=watch)
    assert len(os.listdir("/proc/self/fd")) == before
    assert events[0].text == (
        "job 7 keeps running if this launcher is killed; end it with: end 7"
    )
    assert [event for event in events if isinstance(event, NodeWarning)] == [
        NodeWarning(
            "job 7 may still run: OSError: the engine is silent; end it with: end 7"
        )
    ]


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_job_is_ended_if_its_watch_is_broken(job, is_refused, tmp_path, capfd):
    job.is_broken, job.is_refused, events = True, is_refused, []
    with pytest.raises(RunError, match=r"^ValueError: what is this"):
        placer.launch(
            compile_small(tmp_path),
            on="engine",
            logs=tmp_path / "logs",
            watch=events.append,
        )
    assert not [t for t in threading.enumerate() if t.name == "placer job"]
    assert 'raise ValueError("what is this")' in capfd.readouterr().err
    assert job.was_cancelled
    remains = "job 7 may still run: OSError: the engine is silent; end it with: end 7"
    told = [event.message for event in events if isinstance(event, NodeWarning)]
    assert told == [remains] * is_refused


def test_a_signal_ends_the_wait_for_the_end_of_a_job(job, tmp_path, monkeypatch):
    monkeypatch.setattr(supervise, "LATE_END", 0.0)
    monkeypatch.setattr(signals, "DUPLICATE_WINDOW", 0.0)
    build, events = compile_small(tmp_path), []
    job.is_refused = False

    def interrupt(event):
        events.append(event)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        placer.launch(build, on="engine", logs=tmp_path / "logs", watch=interrupt)
    assert [event for event in events if isinstance(event, NodeWarning)] == [
        NodeWarning("waits for the end of job 7; Ctrl-C stops waiting"),
        NodeWarning(
            "job 7 may still run: a signal ended the wait for the job; end it with: end 7"
        ),
    ]


def test_nothing_is_submitted_that_cannot_be_followed(job, tmp_path, monkeypatch):
    build = compile_small(tmp_path)
    pipe, made = os.pipe, []

    def few_pipes():
        if len(made) >= 5:
            raise OSError(24, "Too many open files")
        made.extend(pipe())
        return tuple(made[-2:])

    monkeypatch.setattr(os, "pipe", few_pipes)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(RunError, match=r"cannot be followed: .*Too many open files"):
        placer.launch(build, on="engine", logs=tmp_path / "logs", watch=print)
    assert len(os.listdir("/proc/self/fd")) == before


def test_ports_are_options_of_engines(job, tmp_path):
    with pytest.raises(
        PlacerError, match=r"--base-port. cannot be used with an engine"
    ):
        placer.launch(compile_small(tmp_path), on="engine", base_port=2000)
