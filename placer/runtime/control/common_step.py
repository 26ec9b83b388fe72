"""The common step: to stop a run or to save it at a step that the spec does not fix,
every node does so after the same step.

1. The control node asks every other node which step it has begun.
2. A node answers with the last step that it has begun. It begins no later step until it
   knows the common step.
3. The control node sends the common step, the largest of the answers, and what to do
   after it.
4. Every node continues up to that step, with the evaluation that follows it. So a node
   that waits for a message in a step that it has begun gets it. Then it acts.

A node answers from a thread of its own: its compute thread may be in the middle of a
step, waiting for a node that has already been stopped. A stopped node waits in the
channel, which continues to acknowledge messages. Otherwise messages of other nodes for
the next step could use up the credit and block the control node's message.

Without lockstep a node needs no step of another one, or none of its last ones. Then each
node acts after the last step that it or a companion has begun, if that suffices for the
others, or once all workers have drained.

Such a round can be repeated; the messages of round k have the number k in their keys. A
step of a run without rounds costs one uncontended lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from enum import IntFlag
from functools import partial
from typing import Any, Final, NamedTuple

from placer.channel.interface import Aborted, Cause, Channel, Key
from placer.plan.plan import Plan
from placer.runtime.control.barrier import (
    ASK,
    DECISION,
    REQUEST,
    receive_json,
    send_json,
)
from placer.system.owned_threads import END_LIMIT, OwnedThreads

_REQUEST: Final = Key(REQUEST, 0)


class Action(IntFlag):
    """What the nodes do after a step."""

    NONE = 0
    SAVE = 1
    STOP = 2


class _Decision(NamedTuple):
    """The largest step that a node has begun, the largest that this node or a companion
    has begun, and what to do."""

    step: int
    begun: int
    action: Action


class CommonStep:
    """One node's part in the rounds of a run.

    It must be created before any node starts a step, so that no question is missed.

    Args:
        plan: the plan.
        channel: the node's channel.
        max_lead: how many steps a node can have begun that another one has not: 0 in
            lockstep, infinity if no node waits for another one.
        companions: returns the nodes that must act after the same step as a node, with
            the node itself.

    Attributes:
        first: the first step of the run; set it before the first `next_action`.
        on_round: called when a round is requested or begins, in any thread. It must not
            wait.
    """

    def __init__(
        self,
        plan: Plan,
        channel: Channel,
        *,
        max_lead: float = 0,
        companions: Callable[[str], Sequence[str]] = lambda node: (node,),
    ) -> None:
        self._max_lead, self._companions = max_lead, companions
        self._channel = channel
        self._control = plan.control
        self._is_control = channel.node == plan.control
        self._others = [n.name for n in plan.nodes if n.name != channel.node]
        self._lock = threading.Lock()
        self._threads = OwnedThreads()
        self._is_closed = False
        self.first = 1
        self.on_round: Callable[[], None] = lambda: None
        self._begun = 0
        self._is_running = False
        self._ended = False
        self._asked = 0  # the number of the last round
        self._handled = 0  # the number of the last round whose action was returned
        self._decided: _Decision | None = None
        self._requested = Action.NONE
        self._decision: Future[_Decision] = Future()
        if self._is_control:
            channel.listen(REQUEST, self._on_request)
        else:
            channel.listen(ASK, self._on_ask)

    @property
    def is_pending(self) -> bool:
        """Whether a round is requested or in progress."""
        return bool(self._requested) or self._asked > self._handled

    def next_action(self, done: int, *, drained: bool = False) -> Action:
        """Return what to do after step `done`, before the next step; call it again
        after that.

        With NONE the next step has begun, unless all workers have `drained`: then no
        step begins, and a round has no other step to wait for. If there is a round,
        this waits for the common step. Raises `Aborted` once the run has failed, and
        RunError for a passed deadline.
        """
        # Under the lock, a step is either begun before the question is answered, and
        # part of the answer, or it is not begun.
        with self._lock:
            self._is_running = True
            self._start_if_requested()
            if self._asked == self._handled:
                if not drained:
                    self._begun = done + 1
                return Action.NONE
        if self._decided is None:
            self._decided = self._wait_for_decision()
        step, begun, action = self._decided
        step = int(max(self.first, begun, step - self._max_lead))
        assert done <= step, (done, step)
        with self._lock:
            if done < step and not drained:
                self._begun = done + 1
                return Action.NONE
            self._decided = None
            self._handled += 1
        return action

    def request(self, action: Action) -> None:
        """Request that all nodes act after the same step, as soon as possible.

        This may be called on any node, from any thread, and returns at once. A request
        before the first step takes effect after it: a run has at least one step.
        Requests after the last step have no effect.
        """
        if not self._is_control:
            send_json(self._channel, self._control, _REQUEST, action)
            return
        with self._lock:
            self._requested |= action
            self._start_if_requested()
        self.on_round()

    def end(self) -> None:
        """Note that the node has run its last step: later requests have no effect.

        If there is a round, the control node waits until every node knows its step.
        """
        with self._lock:
            self._ended = True
            waits = self._is_control and self._asked > self._handled
        if waits:
            self._decision.result()

    def close(self) -> None:
        """Wait for the threads of rounds; no other begins. The run is over, or has failed."""
        self._is_closed = True
        self._threads.join(END_LIMIT)

    def _start_if_requested(self) -> None:
        """Start a round if one is requested and none is in progress. Before their first
        step other nodes may not listen yet. Called with the lock held."""
        is_idle = self._asked == self._handled and self._is_running
        if self._requested and is_idle and not self._ended:
            self._asked += 1
            self._decision = Future()
            self._start_thread(self._decide, self._asked, self._decision)

    def _start_thread(self, call: Callable[..., None], *arguments: Any) -> None:
        if not self._is_closed:
            name = f"placer common step of {self._channel.node}"
            self._threads.begin(partial(call, *arguments), name)

    def _wait_for_decision(self) -> _Decision:
        if self._is_control:
            return self._decision.result()
        key = Key(DECISION, self._handled + 1)
        numbers = receive_json(self._channel, self._control, key, tuple[int, int, int])
        step, begun, action = numbers
        return _Decision(step, begun, Action(action))

    def _decide(self, number: int, decision: Future[_Decision]) -> None:
        """Run a round, in a thread of the control node."""
        try:
            ask = Key(ASK, number)
            for node in self._others:
                send_json(self._channel, node, ask, 0)
            steps = {
                node: receive_json(self._channel, node, ask, int)
                for node in self._others
            }
            with self._lock:
                action, self._requested = self._requested, Action.NONE
            steps[self._control] = self._begun
            step = max(self.first, *steps.values())

            def decide(node: str) -> _Decision:
                begun = max(steps[each] for each in self._companions(node))
                return _Decision(step, begun, action)

            for node in self._others:
                send_json(self._channel, node, Key(DECISION, number), decide(node))
            decision.set_result(decide(self._control))
        except BaseException as error:
            decision.set_exception(error)

    def _on_ask(self, source: str) -> None:
        """Begin no later step, and answer in another thread: this is called in a thread
        of the channel, which must not wait."""
        with self._lock:
            self._asked += 1
            number = self._asked
        self._start_thread(self._answer, source, Key(ASK, number))
        self.on_round()

    def _answer(self, control: str, ask: Key) -> None:
        with self._ends_the_run():
            self._channel.receive(control, ask)
            # After the lock in `_on_ask`, a later step begins only once it is decided,
            # which the control node knows.
            send_json(self._channel, control, ask, self._begun)

    def _on_request(self, source: str) -> None:
        self._start_thread(self._take_request, source)

    def _take_request(self, source: str) -> None:
        with self._ends_the_run():
            self.request(Action(receive_json(self._channel, source, _REQUEST, int)))

    @contextmanager
    def _ends_the_run(self) -> Iterator[None]:
        """Let a failure in a thread end the run: another node waits for it."""
        try:
            yield
        except Aborted:
            pass  # the channel reports it to the compute thread too
        except Exception as error:
            cause = Cause(self._channel.node, "ending a step", str(error))
            self._channel.abort(cause)
