"""Stopping a run early: every node stops after the same step.

The control node finds out which. It asks every node; a node answers with the last step
that it has begun, and begins no later one until it is told the last step of the run,
which is the largest answer. Nodes that are behind go on up to it, so that whoever waits
in a step for another node gets its message. The run ends as if it had been started with
that many steps, except that there is no evaluation after the last.

A node answers from a thread of its own, since its compute thread may be in the middle
of a step and wait for a node that is already held. A held node waits in the channel,
which goes on acknowledging messages meanwhile: what others have sent it for the next
step must not keep the control node's message from coming.

Nothing is sent in a run that is not stopped; a step then costs one uncontended lock.
"""

from __future__ import annotations

import threading
from typing import Final

from placer.build.plan import Plan
from placer.channel.protocol import Aborted, Array, Cause, Channel, Key
from placer.runtime.run.barrier import LAST, STOP, dump, heard_of

_ASK: Final = Key(STOP, 0)
_TELL: Final = Key(LAST, 0)


class Stopping:
    """One node's part in stopping early. To be made before any node begins a step.

    `last` is the last step of the run once that is known here, None before.
    """

    def __init__(self, plan: Plan, channel: Channel) -> None:
        self._channel = channel
        self._control = plan.control
        self._others = [n.name for n in plan.nodes if n.name != channel.node]
        self._lock = threading.Lock()
        self._begun = 0
        self._asked = False
        self._ended = False
        self._decided = threading.Event()
        self._error: BaseException | None = None
        self.last: int | None = None
        if not self._is_control:
            channel.listen(STOP, self._on_ask)

    @property
    def _is_control(self) -> bool:
        return self._channel.node == self._control

    def begin(self, step: int) -> bool:
        """Whether the run has this step, which the compute thread is about to begin.

        Waits while the last step is being found out. Raises what went wrong with that:
        `Aborted` once the run has failed, RunError for a passed deadline.
        """
        with self._lock:
            if not self._asked:
                self._begun = step
                return True
            early = self._is_control and self._begun == 0
        if self.last is None:
            if early:  # requested before there was anybody to ask
                self._start()
            self.last = self._heard()
        return step <= self.last

    def request(self) -> None:
        """Have all nodes stop after the same step, as soon as they can.

        On the control node, from any thread; returns at once. Before the first step it
        holds from then on: a run has at least one. Does nothing once a stop was
        requested, or after the last step.
        """
        assert self._is_control
        with self._lock:
            if self._asked or self._ended:
                return
            self._asked = True
            begun = self._begun > 0
        if begun:
            self._start()

    def end(self) -> None:
        """The node has run its last step: from now on a request does nothing.

        The control node waits here until every node knows the last step.
        """
        with self._lock:
            self._ended = True
            requested = self._asked and self._is_control
        if requested:
            self._heard()

    def _start(self) -> None:
        threading.Thread(target=self._decide, name="placer stop", daemon=True).start()

    def _heard(self) -> int:
        """Wait for the last step of the run."""
        if not self._is_control:
            return heard_of(self._channel, self._control, _TELL, int)
        self._decided.wait()
        if self._error is not None:
            raise self._error
        assert self.last is not None
        return self.last

    def _decide(self) -> None:
        """Ask all nodes and tell them the last step. In a thread of the control node."""
        try:
            for node in self._others:
                self._channel.send(node, _ASK, _message(0))
            answers = [
                heard_of(self._channel, node, _ASK, int) for node in self._others
            ]
            # A run has at least one step.
            last = max(1, self._begun, *answers)
            for node in self._others:
                self._channel.send(node, _TELL, _message(last))
            self.last = last
        except BaseException as error:
            self._error = error
        finally:
            self._decided.set()

    def _on_ask(self, source: str) -> None:
        """Begin no later step, and have the answer sent: nothing may wait here."""
        with self._lock:
            self._asked = True
        threading.Thread(
            target=self._answer,
            name=f"placer stop of {self._channel.node}",
            daemon=True,
        ).start()

    def _answer(self) -> None:
        try:
            self._channel.receive(self._control, _ASK)
            self._channel.send(self._control, _ASK, _message(self._begun))
        except Aborted:
            pass  # the compute thread learns of it by itself
        except Exception as error:  # else the control node would wait for the answer
            self._channel.abort(Cause(self._channel.node, "stopping", str(error)))


def _message(number: int) -> list[Array]:
    return [dump(number)]
