"""The calls of a node program that concern the rows of a batch: its inputs, its metrics and
its outputs."""

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
    """The rows that a node reads, and what it returns of them.

    Attributes:
        position: where the node is; `batches` moves it.
        training: the global batches of training.
        evaluating: the global batches of the evaluation, if there is one.
        phases: the plan of the node in training steps and in evaluations.
        on_record: receives recorded values, and the number of rows that a plain number
            among them counts by.
        on_outputs: called after each batch of an evaluation or a prediction, with its
            number and the outputs of the batch, once the next batch was started.
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
        """Read this node's rows of the current global batch, or of the microbatch.

        Args:
            values: names of inputs, as in the spec's `inputs`.

        Returns:
            One array per name, [rows, *shape] and of the input's dtype; a tuple if
            there are several names. The input `batch.position` is uint32[rows, 2]: the
            step and each row's number in the global batch.

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
        """Return this node's rows of a value that it reads, in the next step."""
        epoch, index = self.position.epoch, self.position.batch
        steps = self.training.order.steps_per_epoch
        following = (epoch, index + 1) if index + 1 < steps else (epoch + 1, 0)
        read = next(each for each in self.phases[0].reads if each.value == value)
        rows = self.training.take(following, read.shard, None, self.position.parts)
        return rows[read.input]

    def batches(self) -> Iterator[int]:
        """Run the batches of an evaluation or a prediction.

        Returns:
            An iterator over the numbers of the batches, from 0. During each one the
            other calls refer to its rows.

        Example:
            for _ in node.batches():
        """
        # Wait for the results of a batch only after the next one was started, so that
        # JAX always has work; and for all of them at the end: after that nothing reads
        # the parameters, so the next update may overwrite them in place.
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
        """Record this node's part of metrics, of a step or of a batch of an evaluation.

        This does not wait for values that are still being computed.

        Args:
            metrics: the statistic of each metric, by name.

        Raises:
            FloatingPointError: with `--debug-nans`, for a loss that is not finite.

        Example:
            node.record(loss=loss, accuracy=accuracy)
        """
        # numpy arrays may be parameters, which the next update overwrites, so they are
        # copied. JAX arrays never change.
        values = {
            name: value.copy() if isinstance(value, np.ndarray) else value
            for name, value in metrics.items()
        }
        evaluation = self.position.evaluation
        if evaluation:
            self._recorded += tuple(values.values())
        self.on_record(values, self.position.count if evaluation else 1)

    def output(self, /, **outputs: Any) -> None:
        """Return this node's rows of outputs, of a batch of a prediction.

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
        """Wait for the results of a batch; -1 is before the first one."""
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
    """Return the step and the number in the global batch of each row: uint32[rows,
    2]."""
    rows = [np.arange(low, high) for low, high in ranges]
    positions = np.empty((sum(map(len, rows)), 2), np.uint32)
    positions[:, 0] = step
    positions[:, 1] = np.concatenate(rows) if rows else ()
    return positions
