"""The calls of a node program that read a batch and report its metrics and outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from placer.channel.interface import Array
from placer.place.layouts.partition import RowShard
from placer.plan.plan import NodePhase
from placer.plan.settings.data.sources import POSITION
from placer.runtime.batches.batches import Batches
from placer.runtime.node.position import Position


@dataclass(slots=True)
class BatchCalls:
    """The calls that read rows and return results.

    Attributes:
        position: the current step and batch of the node; `batches` advances it.
        training: the global batches of training.
        evaluating: the global batches of the evaluation; None without one.
        phases: the plan of the node in training steps and in evaluations.
        on_record: receives recorded values and a number of rows. The rows are the weight
            of metrics that are plain numbers.
        on_outputs: receives the number and the outputs of each batch of an evaluation or
            prediction, after the next batch was started.
    """

    position: Position
    training: Batches
    evaluating: Batches | None
    phases: tuple[NodePhase, NodePhase | None]
    on_record: Callable[[Mapping[str, Any], int], None]
    on_outputs: Callable[[int, Mapping[str, Any]], None] = lambda batch, outputs: None
    _recorded: tuple[Any, ...] = field(default=(), init=False)
    _outputs: Mapping[str, Any] = field(default_factory=dict, init=False)

    def read(self, *values: str) -> Any:
        """Read this node's rows of the current global batch or microbatch.

        Args:
            values: names of inputs, as in the spec's `inputs`.

        Returns:
            One array per name, of shape [rows, *shape] and the input's dtype; a tuple if
            several names are given. The input `batch.position` is uint32[rows, 2]: the step
            and each row's number in the global batch.

        Raises:
            RunError: if the code of a `python:` source raises.
            DataError: for a row of a `python:` source that does not fit its input.

        Example:
            image, label = node.read("image", "label")
        """
        position, phase = self.position, self.phases[self.position.evaluation]
        assert phase is not None
        rows_by_shard: dict[RowShard, Mapping[str, Array]] = {}
        arrays = []
        reads = {read.value: read for read in phase.reads}
        for value in values:
            read = reads[value]
            if read.input == POSITION:
                ranges = position.own_ranges(read.shard)
                arrays.append(_positions(position.step, ranges))
                continue
            if read.shard not in rows_by_shard:
                rows_by_shard[read.shard] = self._batches.take(
                    (position.epoch, position.batch),
                    read.shard,
                    position.microbatch,
                    position.parts,
                )
            arrays.append(rows_by_shard[read.shard][read.input])
        return arrays[0] if len(arrays) == 1 else tuple(arrays)

    def next_rows(self, value: str) -> Array:
        """Return this node's rows of an input in the next step."""
        now = self.position.epoch, self.position.batch
        following = self.training.passes.following(now)
        assert following is not None, now
        read = next(each for each in self.phases[0].reads if each.value == value)
        rows = self.training.take(following, read.shard, None, self.position.parts)
        return rows[read.input]

    def batches(self) -> Iterator[int]:
        """Iterate over the batches of an evaluation or a prediction.

        Returns:
            An iterator over the numbers of the batches, from 0. Other calls of the node
            refer to the rows of the current batch.

        Example:
            for _ in node.batches():
        """
        # Wait for a batch only after the next one was started, so that JAX always has work.
        # Wait for all results at the end: then nothing reads the parameters any more, and the
        # next update may overwrite them in place.
        batches = self._batches
        for batch in range(batches.order.steps_per_epoch):
            self.position.enter_batch(batch, batches.batch_size(batch))
            previous, self._recorded = self._recorded, ()
            outputs, self._outputs = self._outputs, {}
            yield batch
            self._end_batch(batch - 1, previous, outputs)
        last = batches.order.steps_per_epoch - 1
        self._end_batch(last, self._recorded, self._outputs)
        self._recorded, self._outputs = (), {}

    def record(self, /, **metrics: Any) -> None:
        """Record this node's part of the metrics of a training step or an evaluation batch.

        This does not wait for values that are still being computed.

        Args:
            metrics: the statistic of each metric, by name.

        Raises:
            FloatingPointError: with `--debug-nans`, for a loss that is not finite.

        Example:
            node.record(loss=loss, accuracy=accuracy)
        """
        # Copy numpy arrays: they may be parameters, which the next update overwrites. JAX arrays
        # never change.
        values = {
            name: value.copy() if isinstance(value, np.ndarray) else value
            for name, value in metrics.items()
        }
        evaluation = self.position.evaluation
        if evaluation:
            self._recorded += tuple(values.values())
        self.on_record(values, self.position.count if evaluation else 1)

    def output(self, /, **outputs: Any) -> None:
        """Return this node's rows of the outputs of a prediction batch.

        This does not wait for values that are still being computed.

        Args:
            outputs: the rows of each output, by name.

        Example:
            node.output(probability=probability)
        """
        self._outputs = {**self._outputs, **outputs}

    def _end_batch(
        self, batch: int, recorded: Sequence[Any], outputs: Mapping[str, Any]
    ) -> None:
        for value in recorded:
            np.asarray(value)
        if batch >= 0:
            self.on_outputs(batch, outputs)

    @property
    def _batches(self) -> Batches:
        if not self.position.evaluation:
            return self.training
        assert self.evaluating is not None
        return self.evaluating


def _positions(step: int, ranges: Sequence[tuple[int, int]]) -> Array:
    """Return uint32[rows, 2]: the step and the number in the global batch of each row."""
    rows = [np.arange(low, high) for low, high in ranges]
    positions = np.empty((sum(map(len, rows)), 2), np.uint32)
    positions[:, 0] = step
    positions[:, 1] = np.concatenate(rows) if rows else ()
    return positions
