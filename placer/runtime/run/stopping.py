"""The stop protocol: to stop a run early, every node stops after the same step.

1. The control node asks every other node which step it has started.
2. A node answers with the last step that it has started. It starts no later step until
   it knows the last step of the run.
3. The control node sends the last step of the run: the largest of the answers.
4. Nodes that are behind continue up to that step. So a node that waits for a message in
   a step that it has started gets it.

The run then ends as if it had been started with that number of steps, except that no
evaluation follows the last step.

A node answers from a thread of its own: its compute thread may be in the middle of a
step, waiting for a node that has already been stopped. A stopped node waits in the
channel, which continues to acknowledge messages. Otherwise messages of other nodes for
the next step could use up the credit and block the control node's message.

A run that is not stopped sends none of these messages. A step then costs one
uncontended lock.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Final

from placer.build.plan import Plan
from placer.channel.protocol import Aborted, Cause, Channel, Key
from placer.runtime.run.barrier import LAST, STOP, receive_json, send_json

_ASK: Final = Key(STOP, 0)
_LAST_STEP: Final = Key(LAST, 0)


class StopProtocol:
    """One node's part in the stop protocol.

    It must be created before any node starts a step, so that no question is missed.

    Attributes:
        last_step: the last step of the run once this node knows it, else None.
    """

    def __init__(self, plan: Plan, channel: Channel) -> None:
        self._channel = channel
        self._control = plan.control
        self._is_control = channel.node == plan.control
        self._others = [n.name for n in plan.nodes if n.name != channel.node]
        self._lock = threading.Lock()
        self._started = 0
        self._stopping = False
        self._ended = False
        self._decision: Future[int] = Future()
        self.last_step: int | None = None
        if not self._is_control:
            channel.listen(STOP, self._on_ask)

    def begin_step(self, step: int) -> bool:
        """Return whether the compute thread should run this step.

        If the run is being stopped, this waits until the last step is known. Raises
        `Aborted` once the run has failed, and RunError for a passed deadline.
        """
        # Under the lock, a step is either started before the question is answered, and
        # part of the answer, or it is not started.
        with self._lock:
            if not self._stopping:
                self._started = step
                return True
            is_before_first_step = self._is_control and self._started == 0
        if self.last_step is None:
            # Before their first step, other nodes may not listen yet. `request` has
            # left it to this thread to start the protocol, which comes after the
            # barrier.
            if is_before_first_step:
                self._start()
            self.last_step = self._wait_for_last_step()
        return step <= self.last_step

    def request(self) -> None:
        """Request that all nodes stop after the same step, as soon as possible.

        This is called on the control node, from any thread, and returns at once. A
        request before the first step takes effect after it: a run has at least one
        step. Further requests, and requests after the last step, have no effect.
        """
        assert self._is_control
        with self._lock:
            if self._stopping or self._ended:
                return
            self._stopping = True
            has_started = self._started > 0
        if has_started:
            self._start()

    def end_steps(self) -> None:
        """Note that the node has run its last step: later requests have no effect.

        If the run is being stopped, the control node waits until every node knows the
        last step.
        """
        with self._lock:
            self._ended = True
            requested = self._stopping and self._is_control
        if requested:
            self._wait_for_last_step()

    def _start(self) -> None:
        threading.Thread(target=self._decide, name="placer stop", daemon=True).start()

    def _wait_for_last_step(self) -> int:
        """Wait until the last step of the run is known, and return it."""
        if not self._is_control:
            return receive_json(self._channel, self._control, _LAST_STEP, int)
        return self._decision.result()

    def _decide(self) -> None:
        """Run the protocol, in a thread of the control node."""
        try:
            for node in self._others:
                send_json(self._channel, node, _ASK, 0)
            answers = [
                receive_json(self._channel, node, _ASK, int) for node in self._others
            ]
            # A run has at least one step.
            last = max(1, self._started, *answers)
            for node in self._others:
                send_json(self._channel, node, _LAST_STEP, last)
            self._decision.set_result(last)
        except BaseException as error:
            self._decision.set_exception(error)

    def _on_ask(self, source: str) -> None:
        """Start no later step, and answer in another thread: this is called in a thread
        of the channel, which must not wait."""
        with self._lock:
            self._stopping = True
        threading.Thread(
            target=self._answer,
            name=f"placer stop of {self._channel.node}",
            daemon=True,
        ).start()

    def _answer(self) -> None:
        try:
            self._channel.receive(self._control, _ASK)
            # No lock: `_started` does not change once `_stopping` is set.
            send_json(self._channel, self._control, _ASK, self._started)
        except Aborted:
            pass  # the channel reports it to the compute thread too
        # Any other failure must end the run: the control node waits for the answer.
        except Exception as error:
            self._channel.abort(Cause(self._channel.node, "stopping", str(error)))
