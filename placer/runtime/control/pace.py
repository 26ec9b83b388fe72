"""The pace of a run with callbacks: its steps wait for a callback that is slower.

The control node hears from the launcher how many steps the callbacks have had. If they are
`MAX_LEAD` steps behind, it waits before its next step; in lockstep, the other nodes then
wait for it, but for those that receive nothing in a step, such as the first layers of a
model if they are frozen. These hear from it how many steps the callbacks have had, and
wait likewise.

Nodes with steps of their own, such as asynchronous workers, hear that only while the
callbacks are slow: until they have caught up. Meanwhile the lead of each node stays as it
is: a node does one step for each step that the callbacks have had.

Peers that wait for a node fail after the deadline of the run. So a node waits at most half of
it for callbacks, and then does a step.

No node waits for callbacks during a round of the common step, which stops or saves the run.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from placer.channel.interface import Aborted, Cause, Channel, Key
from placer.plan.plan import Plan
from placer.runtime.control.barrier import PACE, receive_json, send_json
from placer.system.owned_threads import END_LIMIT, OwnedThreads

MAX_LEAD: Final = 8
"""The most steps that the nodes are ahead of the callbacks: enough for a callback that is
fast to delay no step."""
CHECK: Final = 0.2
"""Seconds between two checks for a failure of the run while a step waits."""
_KEY: Final = Key(PACE, 0)
_CAUGHT_UP: Final = -1
"""The message after which a node does not wait."""


def make_pace(plan: Plan, channel: Channel) -> Pace | None:
    """Return the pace of a node in a run with callbacks; None if it only waits for other
    nodes."""
    names = [node.name for node in plan.nodes]
    has_own_steps = {name for name in names if plan.worker_of(name) is not None}
    targets = {name for edge in plan.step_edges for name in edge.targets}
    told = {
        name: plan.is_synchronous and name not in has_own_steps
        for name in names
        if name != plan.control and (name in has_own_steps or name not in targets)
    }
    if channel.node == plan.control:
        return ControlPace(channel, told, synchronous=plan.is_synchronous)
    if channel.node in told:
        return ToldPace(channel, plan.control, always=told[channel.node])
    return None


class Pace(ABC):
    """Holds the steps of a node back while the callbacks are slow.

    It is a context manager around the steps.
    """

    def __init__(self) -> None:
        self._threads = OwnedThreads()
        self._changed = self._threads.changed
        self._lead: int | None = None  # of this node, since the callbacks are slow

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        return

    def close(self) -> None:
        """Wait for the thread, if there is one: the steps have ended, or the run."""
        self._threads.join(END_LIMIT)

    @abstractmethod
    def is_ahead(self, done: int) -> bool:
        """Whether the next step has to wait, after so many steps of this run."""

    @abstractmethod
    def _has_news(self, done: int) -> bool:
        """Whether `is_ahead` may have become false; called with the lock held."""

    def wait(self, done: int, is_over: Callable[[], bool], limit: float) -> None:
        """Wait until the callbacks have had enough steps, but not longer than `limit`
        seconds. The wait is also over if `is_over`; call `wake` for that."""
        end = time.monotonic() + limit
        while not is_over() and self.is_ahead(done) and time.monotonic() < end:
            with self._changed:
                self._changed.wait_for(lambda: is_over() or self._has_news(done), CHECK)

    def wake(self) -> None:
        """Let `wait` call `is_over`. May be called from any thread."""
        with self._changed:
            self._changed.notify_all()

    def _keeps_lead(self, done: int, called: int) -> bool:
        """Whether a next step would make the lead of this node larger than it was when the
        callbacks, which have had `called` steps, became slow."""
        if self._lead is None:
            self._lead = done - called
        return done - called >= self._lead


class ControlPace(Pace):
    """The pace of the control node, which tells it to others.

    Args:
        channel: the channel of the control node.
        others: the nodes that hear from this one, each with whether it does so always,
            and not only while callbacks are slow.
        synchronous: whether the steps of this node count. Otherwise the reported steps
            do, which all workers have done.
    """

    def __init__(
        self,
        channel: Channel,
        others: Mapping[str, bool] = MappingProxyType({}),
        *,
        synchronous: bool = True,
    ) -> None:
        super().__init__()
        self._channel = channel
        self._told = dict.fromkeys(others, _CAUGHT_UP)
        self._always = {name for name, is_told in others.items() if is_told}
        self._synchronous = synchronous
        self._reported = self._called = 0
        self._is_slow = False  # the callbacks
        self._waits = self._ended = self._failed = False
        self._tells = False  # in a thread

    def step_reported(self) -> None:
        """Note that the next step is on its way to the callbacks."""
        with self._changed:
            self._reported += 1
            self._note_change()

    def steps_called(self, count: int = 1) -> None:
        """Note that the callbacks have had the next steps."""
        with self._changed:
            self._called += count
            self._note_change()

    def is_ahead(self, done: int) -> bool:
        if self._synchronous:
            return done - self._called >= MAX_LEAD
        with self._changed:
            if self._is_slow:
                return self._keeps_lead(done, self._called)
            self._lead = None
            return False

    def wait(self, done: int, is_over: Callable[[], bool], limit: float) -> None:
        with self._changed:
            self._waits = True
            self._note_change()
        super().wait(done, is_over, limit)
        with self._changed:
            self._waits = False
            self._note_change()

    def _has_news(self, done: int) -> bool:
        return not self.is_ahead(done)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Let the other nodes go on: this one has done its last step, or has failed."""
        with self._changed:
            self._ended, self._failed = True, kind is not None
            self._note_change()
        if kind is None:
            self._threads.join()

    def _note_change(self) -> None:
        """Find out whether callbacks are slow, and tell other nodes; called with the lock
        held."""
        behind = self._reported - self._called
        if self._ended or (behind <= 0 and not self._waits):
            self._is_slow = False
        elif behind >= MAX_LEAD or self._waits:
            self._is_slow = True
        may_tell = self._is_slow or self._always
        if not self._tells and may_tell and self._news():
            self._tells = True
            self._threads.begin(self._run, "placer pace")
        self._changed.notify_all()

    def _news(self) -> dict[str, int]:
        """Return what nodes must hear; called with the lock held."""
        now = {
            name: self._called if self._is_slow or name in self._always else _CAUGHT_UP
            for name in self._told
        }
        return {name: each for name, each in now.items() if each != self._told[name]}

    def _run(self) -> None:
        """Tell the other nodes what has changed, in a thread that must not delay a step."""
        try:
            while True:
                with self._changed:
                    while not (news := self._news()) and not self._ended:
                        self._changed.wait()
                    self._told |= news
                if not news:
                    return
                for node, called in news.items():
                    send_json(self._channel, node, _KEY, called)
        except Aborted:
            pass  # the compute thread learns it too
        except Exception as error:
            if not self._failed:
                self._channel.abort(Cause(self._channel.node, "", str(error)))


class ToldPace(Pace):
    """The pace of another node, as the control node tells it.

    It must be created before the first step, so that no message is missed. If the node
    `always` hears of the callbacks, it is at most `MAX_LEAD` steps ahead of them.
    """

    def __init__(self, channel: Channel, control: str, *, always: bool = False) -> None:
        super().__init__()
        self._channel = channel
        self._control = control
        self._arrived = 0
        self._always = always
        self._called = 0 if always else _CAUGHT_UP
        channel.listen(PACE, self._on_message)

    def is_ahead(self, done: int) -> bool:
        while self._arrived:
            # Without the lock: the thread that reads the channel needs it.
            self._called = receive_json(self._channel, self._control, _KEY, int)
            with self._changed:
                self._arrived -= 1
        if self._always:
            return done - self._called >= MAX_LEAD
        if self._called != _CAUGHT_UP:
            return self._keeps_lead(done, self._called)
        self._lead = None
        return False

    def _has_news(self, done: int) -> bool:
        return self._arrived > 0

    def _on_message(self, source: str) -> None:
        """Count a message. This is called in a thread of the channel, which must not wait."""
        with self._changed:
            self._arrived += 1
            self._changed.notify_all()
