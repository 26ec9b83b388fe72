"""Events of a node to its launcher: none that matters is lost, and the node never
waits."""

import fcntl
import io
import os
import sys
import threading
from contextlib import suppress
from functools import partial

import pytest

from placer.channel.cause import Cause
from placer.errors import RunError
from placer.runtime.callbacks.event_queue import MAX_PENDING, EventQueue, write_all
from placer.runtime.control.events import NodeFailure, State, Step, read_event
from placer.runtime.process import entry_point


@pytest.fixture
def ends():
    """A pipe with a buffer of one page."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    yield reading, writing
    for end in (reading, writing):
        with suppress(OSError):
            os.close(end)


def fail_if_broken(events):
    raise AssertionError("the pipe is whole")


def state(step):
    return State("worker:0", "running", step)


def line(step):
    return Step(step, 1, {"loss": 0.25})


FAILED = NodeFailure(Cause("worker:0", "", "no"), root=True)


def read_all(reading):
    with os.fdopen(os.dup(reading)) as stream:
        return [read_event("worker:0", text.encode()) for text in stream]


def test_a_launcher_that_does_not_read_delays_no_step(ends):
    reading, writing = ends
    pipe = EventQueue(partial(write_all, writing), fail_if_broken)
    steps = MAX_PENDING - 1
    for step in range(steps):  # far more than the pipe's buffer, and nobody reads
        pipe(line(step))
        pipe(state(step))
    seen = []
    reader = threading.Thread(target=lambda: seen.extend(read_all(reading)))
    reader.start()
    pipe.close(60)
    os.close(writing)
    reader.join()
    assert [e.step for e in seen if isinstance(e, Step)] == list(range(steps))
    states = [e.step for e in seen if isinstance(e, State)]
    assert states == sorted(states)
    assert states[-1] == steps - 1
    assert len(states) < 100  # newer states replace queued ones
    assert seen[-1] == state(steps - 1)


def test_close_waits_until_all_events_are_written(ends):
    reading, writing = ends
    pipe = EventQueue(partial(write_all, writing), fail_if_broken)
    for step in range(20):
        pipe(line(step))
    pipe(FAILED)
    pipe.close(60)
    os.close(writing)
    assert read_all(reading) == [*map(line, range(20)), FAILED]
    pipe(line(21))  # dropped


def test_close_does_not_wait_forever(ends):
    reading, writing = ends
    gone = threading.Event()
    pipe = EventQueue(partial(write_all, writing), lambda events: gone.set())
    for step in range(200):
        pipe(line(step))
    pipe.close(0.01)
    os.close(reading)  # which ends the thread, too
    assert gone.wait(60)


def test_the_last_event_does_not_wait_for_room(ends):
    reading, writing = ends
    pipe = EventQueue(partial(write_all, writing), fail_if_broken)
    seen = []
    for step in range(MAX_PENDING):  # one more would wait for the launcher
        pipe(line(step))
    pipe.close(0.01, FAILED)
    reader = threading.Thread(target=lambda: seen.extend(read_all(reading)))
    reader.start()
    pipe.close(60)
    os.close(writing)
    reader.join()
    assert seen == [*map(line, range(MAX_PENDING)), FAILED]


def test_a_broken_pipe_is_reported_once(ends):
    reading, writing = ends
    os.close(reading)
    calls, called = [], threading.Event()

    def gone(events):
        calls.append(threading.current_thread().name)
        called.set()

    pipe = EventQueue(partial(write_all, writing), gone)
    pipe(state(1))
    assert called.wait(60)
    for step in range(3 * MAX_PENDING):
        pipe(line(step))
    pipe.close(60)
    assert calls == ["placer events"]


def test_a_run_goes_on_if_nobody_reads_its_events_nor_its_warnings(ends, monkeypatch):
    class Broken(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    reading, writing = ends
    os.close(reading)
    monkeypatch.setattr(sys, "stderr", Broken())
    write = partial(write_all, writing)
    pipe = EventQueue(write, lambda _: entry_point._warn_of_lost_events())
    pipe(line(1))
    pipe.close(60)


def test_an_event_that_is_not_json_raises(ends):
    pipe = EventQueue(partial(write_all, ends[1]), fail_if_broken)
    with pytest.raises(TypeError):
        pipe(Step(1, 1, {"loss": object()}))
    pipe.close(60)


@pytest.mark.parametrize(
    "event",
    [
        b'{"event": "signal", "node": "ps:0", "number": 99}',
        b'{"event": "state", "node": "ps", "state": "running"}',
        b'{"event": "output", "node": "ps:0", "text": ' + b"[" * 100_000,
        b'{"event": "start", "first_step": 1, "last_step": 2, "steps_per_epoch": -1}',
    ],
)
def test_values_that_no_event_has_are_errors_of_the_node(event):
    with pytest.raises(RunError, match=r"^ps:0 reported an invalid event"):
        read_event("ps:0", event)
