"""A worker's end of a table whose values it trains by itself: differences go to a server,
and its values come back, in a thread of its own, while the next steps compute.

What happens, after a step, is in this order, for each server:

1. If the number of the step is a multiple of `every`: the answer to the last push is
   merged, if it was not yet; then the difference is pushed.
2. If an answer is there, it is merged before the next step. With an outer optimizer the
   next step waits for it, and takes the values as they are.

At a drain the worker pushes, unless it has done so after this step, and merges the answer.
With an outer optimizer it only does so at the end of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placer.channel.interface import Array, Channel, Key
from placer.plan.plan import Edge
from placer.plan.settings.training.update_modes import Geo
from placer.runtime.asynchronous.local_values import LocalValues, Part
from placer.runtime.asynchronous.recorded_order import SEND, USE, Order
from placer.runtime.asynchronous.worker_end import WorkerEnd
from placer.runtime.exchange.worker_messages import MessageKind, header
from placer.system.owned_threads import END_LIMIT
from placer.system.worker import Worker


class DeltaExchange(WorkerEnd):
    """A worker's end of one table of a server.

    All methods are called by the compute thread.

    Args:
        channel: the node's channel.
        pull, push: the edges of the table.
        mode: how the workers agree.
        order: records before which step each answer is merged, and what is sent when; or
            replays that.
        values: the worker's own values.
        parts: where the values of the edges are among them.
    """

    def __init__(
        self,
        channel: Channel,
        pull: Edge,
        push: Edge,
        mode: Geo,
        order: Order,
        values: LocalValues,
        parts: Sequence[Part],
    ) -> None:
        (self._server,) = push.targets
        self._channel = channel
        self._pull, self._push = pull, push
        self._mode, self._order = mode, order
        self._values, self._parts = values, parts
        self._waits = mode.in_rounds
        is_mean = mode.scale == "mean" and not self._waits
        self._divisor = len(push.sources) if is_mean else 1
        self._number = 0  # of the last message
        self._pushed = 0  # the step after which the last difference was taken
        self._version = 0  # the newest one that is merged
        self._oldest = 0  # the one that was merged before the first step since then
        self._horizon = 0
        self._is_open = False  # a push whose answer is not merged yet
        self._answer: Sequence[Array] = ()
        self._exchange = Worker(
            self._send_and_receive, f"placer exchange with {self._server}"
        )
        self._exchange.start()

    def resume(self, steps: Mapping[str, int]) -> None:
        """Continue after the steps of workers; before the first other call."""
        step = steps[self._channel.node]
        every = self._mode.every
        self._pushed = step // every * every if self._waits else step

    def merge(self, step: int) -> None:
        """Merge the answer to the last push before a step, if it is there."""
        if self._is_open:
            if self._waits:
                self._merge()
            elif self._order.replays:
                following = self._order.peek(USE, self._pull.id)
                if following is not None and following[0] == step:
                    self._order.next(USE, self._pull.id)
                    self._merge()
            elif self._exchange.is_idle:
                self._merge()
                self._order.add(USE, self._pull.id, step, self._version)
        if step == self._pushed + 1:
            self._oldest = self._version

    def push_delta(self, step: int) -> None:
        """Push after a step, if that is due."""
        if step % self._mode.every == 0:
            self._push_now(step)

    def drain(self, step: int, *, ends: bool = False) -> None:
        """Push all that was trained up to a step, and tell the server that it was the last
        one before the drain. `ends` says that it is the last one of the run."""
        if step > self._pushed and (ends or not self._waits):
            self._push_now(step)
        if self._is_open:
            self._merge()
        self._order.add(SEND, self._push.id, int(MessageKind.DRAIN), step)
        self._send([header(MessageKind.DRAIN, step)])

    @property
    def horizon(self) -> int:
        """The newest step known up to which all steps of all workers are applied."""
        return self._horizon

    def close(self) -> None:
        """End the thread, after what it does now, and wait for that."""
        self._exchange.end()
        self._exchange.join(END_LIMIT)

    def _push_now(self, step: int) -> None:
        if self._is_open:
            self._merge()
        steps = step - self._pushed
        # A whole difference, without a share of rows: one row of one.
        numbers = header(MessageKind.PUSH, step, steps, self._oldest, 1, 1)
        dtype = self._push.values[0].dtype
        arrays = self._values.take_difference(self._parts, dtype, self._divisor)
        self._order.add(SEND, self._push.id, int(MessageKind.PUSH), steps)
        self._pushed, self._is_open = step, True
        self._exchange.put([numbers, *arrays])

    def _merge(self) -> None:
        """Wait for the answer to the last push, and merge it."""
        self._exchange.wait_until_idle()
        (numbers, *arrays), self._answer = self._answer, ()
        self._version, _, self._horizon, *_ = (int(number) for number in numbers)
        news = [array.reshape(-1) for array in arrays]
        take = self._values.replace if self._waits else self._values.merge
        take(self._parts, news)
        self._is_open = False

    def _send(self, arrays: Sequence[Array]) -> None:
        self._number += 1
        self._channel.send(self._server, Key(self._push.id, self._number), arrays)

    # Run by the thread.

    def _send_and_receive(self, arrays: Sequence[Array]) -> None:
        self._send(arrays)
        key = Key(self._pull.id, self._number)
        self._answer = self._channel.receive(self._server, key)
