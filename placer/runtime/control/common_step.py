"""Agrees on the common step: the step after which all nodes stop or save together.

A round is needed for a stop or save that the spec does not schedule, such as a signal:

1. The control node asks every other node which step it has begun.
2. A node answers with the last step that it has begun. It begins no further step until it
   knows the common step.
3. The control node sends the common step, which is the largest answer, and the action.
4. Every node continues up to that step, including the evaluation after it. Every message
   of a step that has begun is therefore sent. Then the node performs the action.

A separate thread answers, because the compute thread may be inside a step, waiting for a
node that has already paused. A paused node waits in the channel, which continues to
acknowledge messages. Otherwise messages for the next step could use up the credit and
block the control node's message.

Asynchronous nodes need not stop at the same step. Each acts after the last step that it or
a companion has begun. If other nodes still need its gradients, it acts once all workers
have drained.

Rounds can be repeated; the keys of messages contain the number of the round. A step
without a round costs one uncontended lock.
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

CHECK: Final = 0.2
"""Seconds between checks for a failure of the run while a node waits for a round."""
_REQUEST: Final = Key(REQUEST, 0)


class Action(IntFlag):
    """The actions of all nodes after the common step."""

    NONE = 0
    SAVE = 1
    STOP = 2
    PUBLISH = 4


class _Decision(NamedTuple):
    """The largest step that any node has begun, the same for this node and its companions, and
    the action after the common step.
    """

    step: int
    begun: int
    action: Action


class CommonStep:
    """One node's part in the rounds of a run.

    Create it before any node starts a step; otherwise a question can be missed.

    Args:
        max_lead: the largest number of steps that a node can be ahead of another node: 0
            for synchronous training, infinity if no node waits for another.
        companions: returns the nodes that must act after the same step as a given node,
            including that node.

    Attributes:
        first: the first step of the run; set it before the first `next_action`.
        on_round: called, from any thread, when a round is requested or begins. It must
            not block.
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
        self._changed = threading.Condition(self._lock)
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

    def await_round(self) -> None:
        """Wait for a round that the control node has announced. Raises Aborted if the run has
        failed."""
        while not self._is_control and self._asked == self._handled:
            if self._channel.aborted is not None:
                raise Aborted(self._channel.aborted)
            with self._changed:
                self._changed.wait_for(lambda: self._asked > self._handled, CHECK)

    def companions_go_on(self, done: int) -> bool:
        """During a round, whether a companion has begun a step after `done`."""
        with self._lock:
            self._start_if_requested()
            if self._asked == self._handled:
                return False
        if self._decided is None:
            self._decided = self._wait_for_decision()
        return self._decided.begun > done

    def next_action(self, done: int, *, drained: bool = False) -> Action:
        """Return the action after step `done`. Call this between any two steps.

        After another action than NONE, perform it and call this again. NONE means that the
        next step has begun. If all workers have `drained`, no further step begins.
        During a round this waits for the common step.

        Raises:
            Aborted: if the run has failed.
            RunError: if the deadline has passed.
        """
        # The lock orders the beginning of a step and the answer: the answer includes every
        # step that has begun.
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
        """Request that all nodes perform an action after the same step, as soon as possible.

        Any node may call this, from any thread; it does not block. A request before the
        first step takes effect after that step. A request after the last step has no
        effect.
        """
        if not self._is_control:
            send_json(self._channel, self._control, _REQUEST, action)
            return
        with self._lock:
            self._requested |= action
            self._start_if_requested()
        self.on_round()

    def end(self) -> None:
        """Note that the node has finished its last step; later requests have no effect.

        During a round, the control node waits until it has sent the common step to every
        node.
        """
        with self._lock:
            self._ended = True
            waits = self._is_control and self._asked > self._handled
        if waits:
            self._decision.result()

    def close(self) -> None:
        """Wait for the threads of rounds, and start no more. Call this when the run ends."""
        self._is_closed = True
        self._threads.join(END_LIMIT)

    def _start_if_requested(self) -> None:
        # The caller holds the lock. Before the first step other nodes may not listen yet.
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
        # A thread of the channel calls this and must not block: another thread answers.
        with self._changed:
            self._asked += 1
            number = self._asked
            self._changed.notify_all()
        self._start_thread(self._answer, source, Key(ASK, number))
        self.on_round()

    def _answer(self, control: str, ask: Key) -> None:
        with self._ends_the_run():
            self._channel.receive(control, ask)
            # `_begun` cannot change here: since `_on_ask`, no step begins before the decision.
            send_json(self._channel, control, ask, self._begun)

    def _on_request(self, source: str) -> None:
        self._start_thread(self._take_request, source)

    def _take_request(self, source: str) -> None:
        with self._ends_the_run():
            self.request(Action(receive_json(self._channel, source, _REQUEST, int)))

    @contextmanager
    def _ends_the_run(self) -> Iterator[None]:
        """Abort the run if a thread fails, because another node waits for this thread."""
        try:
            yield
        except Aborted:
            pass  # the channel also reports the failure to the compute thread
        except Exception as error:
            cause = Cause(self._channel.node, "ending a step", str(error))
            self._channel.abort(cause)
