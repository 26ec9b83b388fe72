"""What a node tells its launcher: nothing that matters is lost, and nobody waits."""

import fcntl
import json
import os
import threading
from contextlib import suppress

import pytest

from placer.runtime.run.events import BEHIND, Pipe


@pytest.fixture
def ends():
    """A pipe that holds one page."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    yield reading, writing
    for end in (reading, writing):
        with suppress(OSError):
            os.close(end)


def unwanted():
    raise AssertionError("the pipe is whole")


def state(step):
    return {"event": "state", "node": "worker:0", "state": "running", "step": step}


def line(step):
    return {"event": "step", "step": step, "epoch": 1, "metrics": {"loss": 0.25}}


def read_all(reading):
    with os.fdopen(os.dup(reading)) as stream:
        return [json.loads(text) for text in stream]


def test_a_launcher_that_does_not_read_holds_no_step_up(ends):
    reading, writing = ends
    pipe = Pipe(writing, unwanted)
    steps = BEHIND - 1
    for step in range(steps):  # far more than the pipe holds, and nobody reads
        pipe(line(step))
        pipe(state(step))
    seen = []
    reader = threading.Thread(target=lambda: seen.extend(read_all(reading)))
    reader.start()
    pipe.close(60)
    os.close(writing)
    reader.join()
    assert [e["step"] for e in seen if e["event"] == "step"] == list(range(steps))
    states = [e["step"] for e in seen if e["event"] == "state"]
    assert states == sorted(states)
    assert states[-1] == steps - 1
    assert len(states) < 100  # those that waited gave way to newer ones
    assert seen[-1] == state(steps - 1)


def test_closing_waits_until_all_is_written(ends):
    reading, writing = ends
    pipe = Pipe(writing, unwanted)
    for step in range(20):
        pipe(line(step))
    pipe({"event": "failed", "message": "no"})
    pipe.close(60)
    os.close(writing)
    assert [e["event"] for e in read_all(reading)] == ["step"] * 20 + ["failed"]
    pipe(line(21))  # to nobody


def test_closing_does_not_wait_for_ever(ends):
    reading, writing = ends
    gone = threading.Event()
    pipe = Pipe(writing, gone.set)
    for step in range(200):
        pipe(line(step))
    pipe.close(0.01)
    os.close(reading)  # which ends the thread, too
    assert gone.wait(60)


def test_a_last_word_waits_for_no_room(ends):
    reading, writing = ends
    pipe = Pipe(writing, unwanted)
    seen = []
    for step in range(BEHIND):  # one more would wait for the launcher
        pipe(line(step))
    pipe.close(0.01, {"event": "failed", "message": "no"})
    reader = threading.Thread(target=lambda: seen.extend(read_all(reading)))
    reader.start()
    pipe.close(60)
    os.close(writing)
    reader.join()
    assert [e["event"] for e in seen] == ["step"] * BEHIND + ["failed"]


def test_a_launcher_that_is_gone_is_told_once(ends):
    reading, writing = ends
    os.close(reading)
    calls, told = [], threading.Event()

    def gone():
        calls.append(threading.current_thread().name)
        told.set()

    pipe = Pipe(writing, gone)
    pipe(state(1))
    assert told.wait(60)
    for step in range(3 * BEHIND):
        pipe(line(step))
    pipe.close(60)
    assert calls == ["placer pipe"]


def test_an_event_that_is_no_json_is_the_caller_s_mistake(ends):
    pipe = Pipe(ends[1], unwanted)
    with pytest.raises(TypeError):
        pipe({"event": "step", "metrics": {"loss": object()}})
    pipe.close(60)
