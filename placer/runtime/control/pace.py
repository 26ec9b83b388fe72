"""Delays the steps of a run while its callbacks are slow.

The launcher tells the control node how many steps the callbacks have finished. If the
callbacks are `MAX_LEAD` steps behind, the control node waits before its next step. In
synchronous training, most other nodes then wait for the control node. A node that receives
no messages in a step, such as one with frozen first layers, would not wait. The control node
sends the number of finished steps to such nodes, and they wait in the same way.

The control node also informs asynchronous workers, but only while the callbacks are slow.
During this time each worker keeps its lead: it runs one step for each step that the
callbacks finish.

Peers that wait for a node fail after the deadline of the run. A node therefore waits for
callbacks for up to half the deadline, and then runs a step.

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
"""The largest number of steps between nodes and callbacks. Fast callbacks never reach it."""
CHECK: Final = 0.2
"""Seconds between checks for a failure of the run while a step waits."""
_KEY: Final = Key(PACE, 0)
_CAUGHT_UP: Final = -1
"""The message that ends the waits of a node."""


def make_pace(plan: Plan, channel: Channel) -> Pace | None:
    """Return the pace of a node in a run with callbacks; None if the node needs no pace."""
    names = [node.name for node in plan.nodes]
    has_own_steps = {name for name in names if plan.worker_of(name) is not None}
    targets = {name for edge in plan.step_edges for name in edge.targets}
    told = {
        name: plan.is_synchronous and name not in has_own_steps
        for name in names
        if name != plan.control and (name in has_own_steps or name not in targets)
    }
    if channel.node == plan.control:
        # A control node with steps of its own does not wait for others in each step.
        waits = plan.is_synchronous and channel.node not in has_own_steps
        return ControlPace(channel, told, synchronous=waits)
    if channel.node in told:
        return ToldPace(channel, plan.control, always=told[channel.node])
    return None


class Pace(ABC):
    """Delays the steps of a node while the callbacks are slow.

    Use it as a context manager around all steps.
    """

    def __init__(self) -> None:
        self._threads = OwnedThreads()
        self._changed = self._threads.changed
        self._lead: int | None = (
            None  # steps ahead of slow callbacks; None if they are fast
        )

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        return

    def close(self) -> None:
        """Wait for the thread to end, after the last step."""
        self._threads.join(END_LIMIT)

    @abstractmethod
    def is_ahead(self, done: int) -> bool:
        """Whether the node must wait before its next step, after `done` steps of this run."""

    @abstractmethod
    def _has_news(self, done: int) -> bool:
        """Whether `is_ahead` may have become false. The caller holds the lock."""

    def wait(self, done: int, is_over: Callable[[], bool], limit: float) -> None:
        """Wait until the callbacks have caught up or `limit` seconds have passed.

        The wait also ends when `is_over` returns true. Call `wake` to check it.
        """
        end = time.monotonic() + limit
        while not is_over() and self.is_ahead(done) and time.monotonic() < end:
            with self._changed:
                self._changed.wait_for(lambda: is_over() or self._has_news(done), CHECK)

    def wake(self) -> None:
        """Make `wait` check `is_over` again. Safe to call from any thread."""
        with self._changed:
            self._changed.notify_all()

    def _keeps_lead(self, done: int, called: int) -> bool:
        # True if a further step would increase the lead since the callbacks became slow.
        if self._lead is None:
            self._lead = done - called
        return done - called >= self._lead


class ControlPace(Pace):
    """The pace of the control node, which informs other nodes.

    Args:
        channel: the channel of the control node.
        others: the nodes to inform. True: always; False: only while callbacks are slow.
        synchronous: if true, compare the callbacks with the steps of this node, which are
            those of all workers. If false, compare them with the reported steps, which all
            workers have finished.
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
        self._is_slow = False  # whether the callbacks are slow
        self._waits = self._ended = self._failed = False
        self._tells = False  # whether a thread informs the other nodes

    def step_reported(self) -> None:
        """Note that one more step was sent to the callbacks."""
        with self._changed:
            self._reported += 1
            self._note_change()

    def steps_called(self, count: int = 1) -> None:
        """Note that the callbacks have finished `count` more steps."""
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
        """Release the other nodes, after the last step or a failure of this node."""
        with self._changed:
            self._ended, self._failed = True, kind is not None
            self._note_change()
        if kind is None:
            self._threads.join()

    def _note_change(self) -> None:
        """Check whether callbacks are slow, and inform other nodes. The caller holds the lock."""
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
        """Return the messages to send, by node. The caller holds the lock."""
        now = {
            name: self._called if self._is_slow or name in self._always else _CAUGHT_UP
            for name in self._told
        }
        return {name: each for name, each in now.items() if each != self._told[name]}

    def _run(self) -> None:
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
            pass  # the compute thread also raises this error
        except Exception as error:
            if not self._failed:
                self._channel.abort(Cause(self._channel.node, "", str(error)))


class ToldPace(Pace):
    """The pace of a node that the control node informs.

    Create it before the first step; otherwise messages can be missed.

    Args:
        always: whether messages arrive even while the callbacks are fast. The node is then
            never more than `MAX_LEAD` steps ahead of the callbacks.
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
            # Receive without the lock, because the thread of the channel needs the lock.
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
        # A thread of the channel calls this and must not block: only count the message.
        with self._changed:
            self._arrived += 1
            self._changed.notify_all()
