"""Gathers the outputs of a prediction in order, from all nodes on the control node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from placer.channel.interface import Array, Channel, Key
from placer.plan.plan import Plan
from placer.runtime.batches.batches import Batches
from placer.runtime.control.barrier import OUTPUT_ROWS


class OutputGatherer:
    """One node's part in gathering the outputs of all batches.

    A node sends its rows of a batch after it has started the next batch. By then it has
    sent all messages that other nodes need for the batch. The control node receives the
    rows at the same point. While it waits for rows, no node waits for it, and other nodes
    are only a few messages ahead.

    Args:
        plan: the plan.
        channel: the node's channel.
        batches: the batches of the prediction.
        write: called on the control node with the rows of each batch, by output.
    """

    def __init__(
        self,
        plan: Plan,
        channel: Channel,
        batches: Batches,
        write: Callable[[Mapping[str, Array]], None],
    ) -> None:
        self._channel, self._batches, self._write = channel, batches, write
        self._control = plan.control
        self._outputs = plan.outputs
        self._gathered = 0
        self._shards = {
            node.name: {
                o.name: shards[o.name] for o in plan.outputs if o.name in shards
            }
            for node in plan.nodes
            if node.prediction and (shards := node.prediction.outputs)
        }

    def add(self, batch: int, outputs: Mapping[str, Any]) -> None:
        """Send this node's rows of a batch; on the control node, gather the batch.

        Raises:
            RunError: if a node is lost or the deadline passes.
        """
        names = self._shards.get(self._channel.node, {})
        own = [np.ascontiguousarray(outputs[name]) for name in names]
        if self._channel.node == self._control:
            self._gather(batch, own)
        elif own:
            self._channel.send(self._control, Key(OUTPUT_ROWS, batch), own)

    def finish(self) -> None:
        """On the control node, gather the remaining batches.

        These are all batches if its program does not take part in them.
        """
        if self._channel.node == self._control:
            for batch in range(self._gathered, self._batches.order.steps_per_epoch):
                self._gather(batch, [])

    def _gather(self, batch: int, own: list[Array]) -> None:
        count = self._batches.batch_size(batch)
        whole = {
            output.name: np.empty((count, *output.shape), np.dtype(output.dtype))
            for output in self._outputs
        }
        for node, shards in self._shards.items():
            parts = own
            if node != self._control:
                parts = self._channel.receive(node, Key(OUTPUT_ROWS, batch))
            for (name, shard), part in zip(shards.items(), parts, strict=True):
                at = 0
                for low, high in shard.ranges(count):
                    whole[name][low:high] = part[at : at + high - low]
                    at += high - low
        self._write(whole)
        self._gathered = batch + 1
