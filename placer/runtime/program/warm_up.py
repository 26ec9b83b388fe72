"""The warm-up: every node runs its program on zeros before the first step.

So all nodes compile at the same time, and none during a step that others wait for. The
program runs on a real `Node`, whose exchange, tables and rows have no effect: what XLA
compiles is what the steps run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from placer.build.plan import Plan
from placer.channel.protocol import Array, Key
from placer.config.columns import Column
from placer.config.digests import Digests
from placer.memory import aligned
from placer.readers import Order
from placer.readers.rows import NO_DIGESTS
from placer.runtime.program.exchange import Exchange, local_shape
from placer.runtime.program.load import Hook
from placer.runtime.program.node import Node
from placer.runtime.run.batches import Batches
from placer.tables.dense import DenseTable
from placer.tables.protocol import ProgramTable


def run_warm_up(
    plan: Plan, node: Node, step: Hook, evaluate: Hook | None = None
) -> None:
    """Run a node's `step` and `evaluate` until everything that they compute is there,
    with batches of every number of rows that they may have."""
    for size in node.training.sizes:
        running = _dry_node(plan, node, (size,), None)
        running.enter_step(1, 1, 0)
        step(running)
    if evaluate is not None and node.phases[1] is not None:
        running = _dry_node(plan, node, node.training.sizes[:1], node.evaluating)
        running.enter_evaluation(1)
        evaluate(running)


def warm_up_prediction(plan: Plan, node: Node, predict: Hook) -> None:
    """Run a node's `predict` as `run_warm_up` runs the other hooks."""
    running = _dry_node(plan, node, node.training.sizes[:1], node.evaluating)
    running.enter_prediction()
    predict(running)


def _dry_node(
    plan: Plan, node: Node, rows: Sequence[int], evaluated: Batches | None
) -> Node:
    """Return a copy of a node that reads zeros, and that sends and changes nothing.

    `rows` are the sizes of its training batches, `evaluated` the batches whose sizes
    those of its evaluation have.
    """
    columns = {column.name: column for column in plan.columns}

    def batches(rows: Sequence[int]) -> Batches:
        order = Order(sum(rows), rows[0], shuffle=False, seed=0, remainder="keep")
        return Batches(order, _ZeroRows(columns))

    exchange = node.exchange
    dry_exchange = _DryExchange(
        exchange.node, exchange.channel, exchange.edges, exchange.workers
    )
    return replace(
        node,
        exchange=dry_exchange,
        tables={name: _FrozenTable(table) for name, table in node.tables.items()},
        training=batches(rows),
        evaluating=batches(evaluated.sizes) if evaluated else None,
        on_record=lambda recorded, _: _settle(recorded.values()),
        on_outputs=lambda _, outputs: _settle(outputs.values()),
    )


@dataclass(slots=True)
class _ZeroRows:
    """Rows that are zeros."""

    columns: Mapping[str, Column]
    rows: int = 0

    def take(
        self, indices: Array, out: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        del out
        return {
            name: _zeros(column.dtype, (len(indices), *column.shape))
            for name, column in self.columns.items()
        }

    def digests(self) -> Digests:
        return NO_DIGESTS


class _DryExchange(Exchange):
    """Receives zeros, and sends nothing."""

    def send(self, key: Key, values: Sequence[Any], count: int) -> None:
        _settle(values)

    def receive(self, key: Key, count: int) -> tuple[Array, ...]:
        edge = self.edges[key.edge]
        return tuple(
            _zeros(
                value.dtype,
                local_shape(value, self._pieces(edge, value, self.node, count), count),
            )
            for value in edge.values
        )

    def receive_chunks(self, key: Key) -> Iterator[tuple[str, int, list[Array]]]:
        return iter(())

    def assemble(self, blocks: Sequence[Array], shape: tuple[int, ...]) -> Array:
        return _zeros(blocks[0].dtype, shape)


class _FrozenTable:
    """A table whose values stay as they are."""

    def __init__(self, table: ProgramTable) -> None:
        self._table = table
        self.name = table.name
        self.block_of_gradient: dict[str, int] = {}

    def values(self) -> tuple[Any, ...]:
        return self._table.values()

    def update(
        self, gradients: Sequence[Any], *, learning_rate: float, scale: Any = None
    ) -> None:
        _settle((*gradients, scale))

    @contextmanager
    def update_in_chunks(
        self, *, learning_rate: float, scale: Any = None
    ) -> Iterator[None]:
        yield

    def compute_directions(
        self, gradients: Sequence[Any], *, scale: Any = None
    ) -> tuple[Any, ...]:
        _settle(gradients)
        values = self._table.values()
        if not isinstance(self._table, DenseTable):
            return values  # which are on the devices that directions are on
        return tuple(_zeros(value.dtype, value.shape) for value in values)

    def apply_directions(self, ratios: Sequence[Any], *, learning_rate: float) -> None:
        _settle(ratios)

    def load(self, values: Sequence[Any]) -> None:
        _settle(values)


def _zeros(dtype: npt.DTypeLike, shape: Sequence[int]) -> Array:
    array = aligned.zeros(tuple(shape), np.dtype(dtype))
    array.flags.writeable = False
    return array


def _settle(values: Iterable[Any]) -> None:
    """Wait until values are computed: a failure is to be seen here."""
    for value in values:
        if value is not None:
            np.asarray(value)
