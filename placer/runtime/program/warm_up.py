"""The warm-up: every node runs its program on zeros before the first step.

So all nodes compile at the same time, and none during a step that others wait for. The
program runs on a real `Node`, whose exchange, tables and rows have no effect: what XLA
compiles is what the steps run.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from placer.build.plan import BY_KEY, Edge, Plan
from placer.channel.protocol import Array, Key
from placer.config.columns import Column
from placer.config.digests import Digests
from placer.config.update_modes import Async
from placer.memory import aligned
from placer.readers import Order
from placer.readers.rows import NO_DIGESTS
from placer.runtime.program.backup import FirstWorkers
from placer.runtime.program.exchange import Exchange, local_shape
from placer.runtime.program.load import Hook
from placer.runtime.program.node import Node
from placer.runtime.program.pulled_versions import PulledVersions
from placer.runtime.program.service import Service
from placer.runtime.program.worker_messages import WorkerMessage
from placer.runtime.run.batches import Batches
from placer.tables.dense import DenseTable
from placer.tables.protocol import ProgramTable


def run_warm_up(
    plan: Plan, node: Node, step: Hook, evaluate: Hook | None = None
) -> None:
    """Run a node's `step`, `evaluate` and `serve` until everything that they compute is there,
    with batches of every number of rows that they may have."""
    for size in node.training.sizes:
        for running in _dry_nodes(plan, node, (size,), None):
            running.enter_step(1, 1, 0)
            step(running)
    if evaluate is not None and node.phases[1] is not None:
        sizes = node.training.sizes[:1]
        for running in _dry_nodes(plan, node, sizes, node.evaluating):
            running.enter_evaluation(1)
            evaluate(running)
    if node.serve is not None:
        running = _dry_node(plan, node, node.training.sizes[:1], None)
        running.service = cast(Service, _DryService(running.exchange))
        node.serve(running)


def warm_up_prediction(plan: Plan, node: Node, predict: Hook) -> None:
    """Run a node's `predict` as `run_warm_up` runs the other hooks."""
    for running in _dry_nodes(plan, node, node.training.sizes[:1], node.evaluating):
        running.enter_prediction()
        predict(running)


def _dry_nodes(
    plan: Plan, node: Node, rows: Sequence[int], evaluated: Batches | None
) -> Iterator[Node]:
    """Return a dry node for each size that the rows of sparse tables may have: one for a
    plan without any, or whose batches are so small that there is one size."""
    number = 0
    while True:
        running = _dry_node(plan, node, rows, evaluated)
        running.forced_size = number
        yield running
        number += 1
        if number >= running.most_sizes:
            return


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
        communicators={
            number: cast(PulledVersions, _DryCommunicator(dry_exchange, number))
            for number in node.communicators
        },
        updates=(),
        service=None,
        sent_back={},
        expected=(),
        first_workers=cast(FirstWorkers, _DryFirstWorkers(dry_exchange))
        if node.first_workers is not None
        else None,
        newest=None,
        modes=dict.fromkeys(node.modes, Async()),
        training=batches(rows),
        evaluating=batches(evaluated.sizes) if evaluated else None,
        on_record=lambda recorded, _: _settle(recorded.values()),
        on_outputs=lambda _, outputs: _settle(outputs.values()),
        **_dry_rows(node),
    )


def _dry_rows(node: Node) -> dict[str, Any]:
    """Return the attributes of a dry node that concern rows of sparse tables."""
    if node.row_exchange is None:
        return {}
    from placer.runtime.program.dry_rows import FrozenRows, dry_row_exchange

    return {
        "row_exchange": dry_row_exchange(node.row_exchange),
        "row_tables": {name: FrozenRows(t) for name, t in node.row_tables.items()},
    }


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

    def send(
        self,
        key: Key,
        values: Sequence[Any],
        count: int,
        targets: Sequence[str] | None = None,
    ) -> None:
        _settle(values)

    def receive(
        self,
        key: Key,
        count: int,
        sources: Container[str] | None = None,
        factor: float = 1.0,
    ) -> tuple[Array, ...]:
        edge = self.edges[key.edge]
        if edge.is_flat and edge.values[0].layouts[1] == "F":
            known = self.range_edge(edge)
            return tuple(
                _zeros(value.dtype, (known.local_size(i, self.node),))
                for i, value in enumerate(edge.values)
            )
        if edge.is_flat:
            return tuple(
                _zeros(value.dtype, [int(size) for size in value.shape])
                for value in edge.values
            )
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


@dataclass(slots=True)
class _DryCommunicator:
    """Pulls zeros, and pushes nothing."""

    exchange: _DryExchange
    edge: int

    def pull(self, step: int) -> tuple[Array, ...]:
        return self.exchange.receive(Key(self.edge, step), 0)

    def push(self, step: int, rows: tuple[int, int], arrays: Sequence[Any]) -> None:
        _settle(arrays)

    def merge(self, step: int) -> None:
        """Merge nothing."""

    def push_delta(self, step: int) -> None:
        """Push nothing."""


@dataclass(slots=True)
class _DryFirstWorkers:
    """Offers nothing, and gives zeros."""

    exchange: _DryExchange

    def begin(self, step: int, count: int) -> None:
        """Begin a step."""

    def offer(self, edge: int, values: Sequence[Any]) -> None:
        _settle(values)

    def sum_of_first(self, edge: int) -> tuple[Array, ...]:
        return self.exchange.receive(Key(edge, 0), 0)


@dataclass(slots=True)
class _DryService:
    """Has a message of each kind, with gradients that are zeros, and sends no answer."""

    exchange: Exchange

    def messages(self) -> Iterator[WorkerMessage]:
        for edge in self.exchange.edges.values():
            if edge.exchange in BY_KEY:
                if edge.group is not None and self.exchange.node in edge.targets:
                    yield _empty_message(edge)
                continue
            brings = edge.is_push or edge.exchange == "pull_sum"
            if self.exchange.node in edge.targets and brings:
                zeros = self.exchange.receive(Key(edge.id, 1), 0)
                pieces = ((i, 0, each.reshape(-1)) for i, each in enumerate(zeros, 1))
                yield WorkerMessage(edge.id, edge.sources[0], 1, 1, 1, parts=(pieces,))
            elif self.exchange.node in edge.sources and edge.exchange is not None:
                yield WorkerMessage(edge.id, edge.targets[0], 1)

    def answer(self, message: WorkerMessage, values: Sequence[Array]) -> None:
        _settle(values)

    def add_to_sums(self, message: WorkerMessage) -> None:
        _settle(part for pieces in message.parts for _, _, part in pieces)

    def send_sum(self, message: WorkerMessage) -> None:
        pass

    def answer_rows(self, message: WorkerMessage, rows: Sequence[Array]) -> None:
        pass


def _empty_message(edge: Edge) -> WorkerMessage:
    """Return a message about no keys of sparse tables."""
    from placer.runtime.program.dry_rows import no_keys

    keys = [no_keys(value) for value in edge.values]
    return WorkerMessage(
        edge.id, edge.sources[0], 1, 1, 1, parts=(iter(()),), keys=keys
    )


class _NoUpdate:
    """An update that changes nothing."""

    def apply(self, block: int, start: int, gradients: Sequence[Array]) -> None:
        _settle(gradients)


class _FrozenTable:
    """A table whose values stay as they are."""

    def __init__(self, table: ProgramTable) -> None:
        self._table = table
        self.name, self.dtype = table.name, table.dtype
        of_gradient: dict[str, int] = getattr(table, "block_of_gradient", {})
        self.block_of_gradient = of_gradient

    def values(self) -> tuple[Any, ...]:
        return self._table.values()

    def update(
        self, gradients: Sequence[Any], *, learning_rate: float, scale: Any = None
    ) -> None:
        _settle((*gradients, scale))

    @contextmanager
    def update_in_chunks(
        self, *, learning_rate: float, scale: Any = None
    ) -> Iterator[_NoUpdate]:
        yield _NoUpdate()

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
