"""A job whose events wait for the launcher."""

from __future__ import annotations

import select
import threading
import time

import pytest

from placer.launcher.engines.engine import NodeEnded, NodeLines
from placer.launcher.followed import FollowedJob
from placer.launcher.supervise import supervise
from placer.runtime.callbacks.callbacks import CallbackQueue
from placer.runtime.control.events import NodeWarning, Start, Step, write_event
from placer.runtime.signals.interruption import Interruption
from placer.runtime.signals.signals import catch_signals


class CallbackError(Exception):
    """What the callback of a user raises."""


class Endless:
    """A job of one node, with steps until it is cancelled."""

    title, cancel_command, folder = "job 7", "end 7", None

    def __init__(self):
        self.is_cancelled = threading.Event()

    def stop(self):
        pass

    def cancel(self):
        self.is_cancelled.set()

    def events(self):
        yield NodeLines("worker:0", [write_event(Start(1, 10**6, 1000)).rstrip()])
        steps = [write_event(Step(n, 1, {"loss": 0.5})).rstrip() for n in range(1, 101)]
        while not self.is_cancelled.is_set():
            yield NodeLines("worker:0", steps)
        yield NodeEnded("worker:0", -15)


def has_room(pipe):
    return bool(select.select([], [pipe], [], 0)[1])


def test_a_callback_that_raises_while_events_wait_ends_the_run(tmp_path):
    job, followed = Endless(), FollowedJob("engine")

    class Raises:
        def on_step(self, record):
            # Where it is full, no more events are read.
            if not calls.is_full or not warnings:
                return
            until = time.monotonic() + 60
            while has_room(followed.nodes[0].write_fd):
                assert time.monotonic() < until
                time.sleep(0.001)
            raise CallbackError

    warnings: list[str] = []

    def watch(event):
        if isinstance(event, NodeWarning):
            warnings.append(event.message)

    calls = CallbackQueue((Raises(),))
    with catch_signals() as signals, followed.open_nodes(["worker:0"], tmp_path):
        followed.follow(job, job.events(), "logs")
        with pytest.raises(CallbackError):
            supervise(followed.nodes, watch, signals, Interruption(), calls)
    assert warnings == [
        "the callbacks are more than 64 steps behind, and job 7 does not wait for them:"
        " their return values take effect late"
    ]
    assert job.is_cancelled.is_set()
    assert not followed.remains
