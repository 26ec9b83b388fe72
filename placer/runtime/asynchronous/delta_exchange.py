"""A worker's side of a table in the mode `geo`: the worker trains its own copy of the values.

A thread sends the worker's delta to a server and receives the server's values, while the next
steps are computed. For each server, the order after a step is:

1. If the step number is a multiple of `every`: merge the answer to the last push, unless it is
   merged already. Then push the delta.
2. Merge an answer that has arrived before the next step. With an outer optimizer, the next
   step waits for the answer and replaces its values by it.

At a drain the worker pushes, unless it has pushed after this step, and merges the answer. With
an outer optimizer this happens only at the end of the run.
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
from placer.system.owned_threads import END_LIMIT, OwnedThreads
from placer.system.worker import Worker


class DeltaExchange(WorkerEnd):
    """A worker's side of one table of a server.

    All methods are called by the compute thread.

    Args:
        channel: the node's channel.
        pull, push: the edges of the table.
        mode: how the workers agree on updates.
        order: records the messages and the step before which each answer is merged, or
            replays them.
        values: the worker's own values.
        parts: the part of the worker's values that each edge value covers.
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
        self._number = 0  # number of the last message
        self._pushed = 0  # the step of the last delta
        self._version = 0  # the newest merged version
        self._oldest = 0  # the version merged before the first step after the last push
        self._horizon = 0
        self._is_open = False  # an answer is not merged yet
        self._answer: Sequence[Array] = ()
        self._exchange = Worker(
            self._send_and_receive, f"placer exchange with {self._server}"
        )
        self._exchange.start()

    def resume(self, steps: Mapping[str, int]) -> None:
        step = steps[self._channel.node]
        every = self._mode.every
        self._pushed = step // every * every if self._waits else step

    def merge(self, step: int) -> None:
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
        if step % self._mode.every == 0:
            self._push_now(step)

    def drain(self, step: int, *, ends: bool = False) -> None:
        if step > self._pushed and (ends or not self._waits):
            self._push_now(step)
        if self._is_open:
            self._merge()
        self._order.add(SEND, self._push.id, int(MessageKind.DRAIN), step)
        self._send([header(MessageKind.DRAIN, step)])
        self._version = self._oldest = 0  # the server counts from 0 after a drain

    @property
    def horizon(self) -> int:
        return self._horizon

    def close(self) -> None:
        self._exchange.end()
        self._exchange.join(END_LIMIT)

    @property
    def threads(self) -> OwnedThreads:
        return self._exchange

    def _push_now(self, step: int) -> None:
        if self._is_open:
            self._merge()
        steps = step - self._pushed
        # The delta counts in full, so the share of rows is 1 of 1.
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

    # The exchange thread calls the methods below.

    def _send_and_receive(self, arrays: Sequence[Array]) -> None:
        self._send(arrays)
        key = Key(self._pull.id, self._number)
        self._answer = self._channel.receive(self._server, key)
