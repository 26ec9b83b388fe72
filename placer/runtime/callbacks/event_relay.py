"""Relays events of nodes on other machines to the launcher, through the control node.

A node relays its events over the channel after it has joined and until its last barrier. At
other times, and after a failure, it writes them to its own pipe, as on one machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from placer.channel.interface import Aborted, Cause, Channel, Key
from placer.errors import RunError
from placer.place.node_kinds import NodeId
from placer.runtime.callbacks.event_queue import EventQueue
from placer.runtime.control.barrier import EVENTS
from placer.runtime.control.events import (
    Event,
    Left,
    NodeFailure,
    NodeWarning,
    Output,
    Report,
    SignalReceived,
    State,
    read_event,
)
from placer.system.owned_threads import END_LIMIT
from placer.system.worker import Worker

_KEY: Final = Key(EVENTS, 0)


class RelayedReport:
    """Reports a node's events to the control node, or with `own` to the node's own pipe."""

    def __init__(self, own: Report) -> None:
        self._own = own
        self._queue: EventQueue | None = None

    def __call__(self, event: Event) -> None:
        queue = None if isinstance(event, NodeFailure | Left) else self._queue
        if queue is None or not queue.offer(event):
            self._own(event)

    def begin(self, channel: Channel, control: str) -> None:
        """Start to relay events to the control node, when the node has joined."""

        def send(line: bytes) -> None:
            channel.send(control, _KEY, [np.frombuffer(line, np.uint8)])

        self._queue = EventQueue(send, self._fall_back)

    def end(self) -> None:
        """Relay the queued events and then stop, before the last barrier."""
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.close(None)

    def close(self) -> None:
        """Stop the thread if it still runs, after a failure of the run."""
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.close(END_LIMIT)

    def _fall_back(self, events: Sequence[Event]) -> None:
        for event in events:
            self._own(event)


class EventRelay:
    """Receives the events of all other nodes on the control node, and reports them.

    Args:
        channel: the control node's channel.
        report: called with each event.
    """

    def __init__(self, channel: Channel, report: Report) -> None:
        self._channel = channel
        self._report = report
        self._sources = Worker(self._relay, "placer relay")
        channel.listen(EVENTS, self._sources.offer)

    def begin(self) -> None:
        """Report the events that have arrived, and those that arrive later."""
        self._sources.start()

    def close(self) -> None:
        """Report all events that have arrived, and stop."""
        self._sources.close()

    def drop(self) -> None:
        """Stop after the current event, when the run has failed."""
        self._sources.drop()
        self._sources.join(END_LIMIT)

    def _relay(self, source: str) -> None:
        try:
            self._report(self._receive(source))
        except Aborted:  # the compute thread also raises this error
            self._sources.drop()
        except RunError as error:
            self._sources.drop()
            self._channel.abort(Cause(source, "", str(error)))

    def _receive(self, source: str) -> Event:
        """Receive an event; raise RunError if it belongs to another process than the sender."""
        (line,) = self._channel.receive(source, _KEY)
        event = read_event(source, line.tobytes())
        match event:
            case NodeWarning():
                return event
            case State(node=node) | Output(node=node) | SignalReceived(node=node):
                if NodeId(node).process == NodeId(source).process:
                    return event
        raise RunError(
            f"{source} sent an event that this version of placer does not know",
            hint="run the same version of placer on every node",
        )
