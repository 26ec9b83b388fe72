"""Events of nodes on other machines come to the launcher by the control node."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import numpy as np
import pytest

from placer.channel.cause import Cause
from placer.channel.in_process import memory_channels
from placer.channel.interface import Channel, Key
from placer.runtime.callbacks.event_relay import EventRelay, RelayedReport
from placer.runtime.control.barrier import EVENTS
from placer.runtime.control.events import (
    Event,
    NodeFailure,
    NodeWarning,
    Output,
    State,
    write_event,
)
from placer.runtime.control.result import Result

NODES = ["worker:0", "worker:1", "ps:0"]
TIMEOUT = 60.0


class Received:
    """Receives events, in any thread."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def __call__(self, event: Event) -> None:
        self.events.put(event)

    def next(self) -> Event:
        return self.events.get(timeout=TIMEOUT)


@pytest.fixture
def channels() -> Iterator[dict[str, Channel]]:
    made = memory_channels(NODES)
    for channel in made.values():
        channel.join()
    yield dict(made)
    for channel in made.values():
        channel.close()


def test_events_of_a_joined_node_come_from_the_control_node(channels):
    own, launcher = Received(), Received()
    report = RelayedReport(own)
    before, after = Output("ps:0", "before"), Output("ps:0", "after")
    told = [
        State("ps:0", "running", 3),
        Output("ps:0", "hello"),
        NodeWarning("careful"),
    ]
    relay = EventRelay(channels["worker:0"], launcher)
    report(before)
    report.begin(channels["ps:0"], "worker:0")
    for event in told:
        report(event)
    report.end()
    relay.begin()
    relay.close()
    report(after)
    assert [launcher.next() for _ in told] == told
    assert [own.next(), own.next()] == [before, after]
    assert launcher.events.empty()
    assert own.events.empty()


def test_a_failure_comes_from_the_node_itself(channels):
    own = Received()
    report = RelayedReport(own)
    report.begin(channels["ps:0"], "worker:0")
    failure = NodeFailure(Cause("ps:0", "step 1", "no memory"), root=True)
    report(failure)
    assert own.next() == failure
    report.end()


def test_events_that_cannot_be_relayed_come_from_the_node_itself(channels):
    own = Received()
    report = RelayedReport(own)
    report.begin(channels["ps:0"], "worker:0")
    channels["ps:0"].abort(Cause("ps:0", "step 1", "no memory"))
    told = [Output("ps:0", str(i)) for i in range(100)]
    for event in told:
        report(event)
    report.end()
    assert [own.next() for _ in told] == told


@pytest.mark.parametrize(
    "event",
    [
        Output("ps:0", "of another node"),
        State("worker:0", "done"),
        NodeFailure(Cause("ps:0", "", "forged"), root=True),
        Result(1, {}, {}, 1.0, {}),
    ],
)
def test_an_event_that_is_not_the_senders_ends_the_run(channels, event):
    launcher = Received()
    relay = EventRelay(channels["worker:0"], launcher)
    relay.begin()
    line = np.frombuffer(write_event(event), np.uint8)
    channels["worker:1"].send("worker:0", Key(EVENTS, 0), [line])
    relay.close()
    assert launcher.events.empty()
    cause = channels["ps:0"].aborted
    assert cause is not None
    assert "worker:1 sent an event that this version of placer does not" in cause.what
