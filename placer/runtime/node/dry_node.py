"""`DryNode`: the node of the warm-up. It receives zeros, sends nothing, changes no table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from placer.channel.interface import Array
from placer.plan.plan import Edge, EdgeValue, NodePhase, Plan
from placer.plan.settings.data.columns import Column
from placer.plan.settings.data.sources import POSITION
from placer.runtime.exchange.nested_tuples import fill_tree, leaves, like_tree
from placer.runtime.exchange.parts import Part, array_to_send
from placer.runtime.exchange.worker_messages import WorkerMessage
from placer.runtime.node.node import Node
from placer.runtime.node.position import Position
from placer.runtime.node.row_calls import RowCalls
from placer.system.memory import aligned
from placer.tables.dense import DenseTable
from placer.tables.key_sums import KeyPart, Statistic

if TYPE_CHECKING:
    from placer.runtime.exchange.row_exchange import AskedKeys, PartsOfRows
    from placer.tables.sparse.batch_keys import BatchKeys

T = TypeVar("T")


@dataclass(slots=True)
class DryNode(Node):
    """A node without side effects: reads and receives return zeros, sends and updates do nothing.

    Methods that take computed arrays wait until JAX has computed them. So errors of
    compiled functions are raised during the warm-up.

    Attributes:
        columns: the columns of the plan, by name.
        sizes: rows per batch: one number for a training step, or one for each batch of an
            evaluation.
    """

    columns: Mapping[str, Column] = field(kw_only=True)
    sizes: Sequence[int] = field(kw_only=True)

    @staticmethod
    def of(
        node: Node,
        plan: Plan,
        sizes: Sequence[int],
        *,
        evaluation: bool = False,
        padded_size: int | None = None,
    ) -> DryNode:
        """Return a dry copy of a node, which shares the node's tables.

        Args:
            node: the node.
            plan: the plan.
            sizes: rows per batch.
            evaluation: whether the program reads the inputs of an evaluation.
            padded_size: the index of the padded size of sparse rows.
        """
        own = {
            each.name: getattr(node, each.name) for each in fields(Node) if each.init
        }
        position = Position(node.position.parts, count=sizes[0], evaluation=evaluation)
        own["position"] = position
        own["microbatch_calls"] = replace(node.microbatch_calls, position=position)
        if (calls := node.row_calls) is not None:
            # Not imported at the top: only runs with sparse tables load this class.
            keys = type(calls.keys)(calls.keys.tables, position, padded_size)
            own["row_calls"] = replace(calls, keys=keys)
        columns = {column.name: column for column in plan.columns}
        return DryNode(**own, columns=columns, sizes=sizes)

    def read(self, *values: str) -> Any:
        phase = self.batch_calls.phases[self.position.evaluation]
        assert phase is not None
        arrays = tuple(self._zero_rows(phase, value) for value in values)
        return arrays[0] if len(arrays) == 1 else arrays

    def _zero_rows(self, phase: NodePhase, value: str) -> Array:
        read = next(each for each in phase.reads if each.value == value)
        rows = sum(high - low for low, high in self.position.own_ranges(read.shard))
        if read.input == POSITION:
            return _zeros(np.uint32, (rows, 2))
        column = self.columns[read.input]
        return _zeros(column.dtype, (rows, *column.shape))

    def batches(self) -> Iterator[int]:
        for batch, size in enumerate(self.sizes):
            self.position.enter_batch(batch, size)
            yield batch

    def _settle(self, /, *arguments: Any, **options: Any) -> None:
        """Wait until JAX has computed the arrays, so that its errors are raised here."""
        for value in leaves((arguments, tuple(options.values()))):
            if isinstance(value, Part):
                value = value.array
            if hasattr(value, "dtype"):
                np.asarray(value)

    record = output = _settle
    update = update_from_edges = apply_directions = store = _settle
    offer = push_delta = merge = wait_for_workers = _settle
    update_from = add_to_sums = send_sum = answer = answer_rows = _settle
    send_keys = send_keys_ahead = receive_keys_ahead = _settle
    send_rows = send_row_gradients = update_rows = _settle

    # Tables.

    def compute_directions(self, table: str, gradients: T, scale: Any = None) -> T:
        self._settle(gradients, scale)
        if self._lacks_rows(table):
            return gradients
        directions = self.tables[table].values()  # arrays on the right device
        if isinstance(self.tables[table], DenseTable):
            directions = tuple(_zeros(each.dtype, each.shape) for each in directions)
        return like_tree(gradients, directions)

    def assemble_parameter(self, *blocks: Any, shape: tuple[int, ...]) -> Array:
        return _zeros(blocks[0].dtype, shape)

    # Edges.

    def send(self, edge: int, *values: Any) -> None:
        planned = self.exchange.edges[edge].values
        for value, each in zip(leaves(values), planned, strict=True):
            if value is not None:
                array_to_send(value, each)

    push = send

    def receive(self, edge: int, kind: type[Any] | None = None) -> Any:
        return self._received(edge, self.position.rows, kind)

    def pull(self, edge: int, kind: type[Any] | None = None) -> Any:
        return self._received(edge, 0, kind)

    sum_of_first = pull

    def _received(self, edge: int, rows: int, kind: type[Any] | None) -> Any:
        planned = self.exchange.edges[edge]
        shapes = self.exchange.local_shapes(planned, rows)
        arrays = tuple(
            _zeros(value.dtype, shape)
            for value, shape in zip(planned.values, shapes, strict=True)
        )
        return arrays if kind is None else fill_tree(kind, arrays)

    # Messages of workers.

    def messages(self) -> Iterator[WorkerMessage]:
        """Yield one message for each edge that the hook `serve` handles."""
        for edge in self.exchange.edges.values():
            exchange = edge.declared
            if exchange is None or not edge.is_asynchronous:
                continue
            comes = bool(exchange.handling) and self.name in edge.targets
            answers = exchange.is_answer and not exchange.is_by_key
            if comes or (answers and self.name in edge.sources):
                yield WorkerMessage(edge.id, edge.sources[0], 1, 1, 1)

    def pushed(
        self, table: str, message: WorkerMessage, kind: type[Any] | None = None
    ) -> Any:
        values, dtype = self._values(message.edge), self.tables[table].dtype
        arrays = tuple(_zeros(dtype, map(int, value.shape)) for value in values)
        return arrays if kind is None else fill_tree(kind, arrays)

    # Rows of sparse tables.

    def receive_keys(self, edge: int) -> tuple[AskedKeys, ...]:
        planned = self.exchange.edges[edge]
        return _no_keys(planned, len(planned.sources))

    def asked_keys(self, message: WorkerMessage) -> tuple[AskedKeys, ...]:
        edges = self.exchange.edges
        tables = edges[message.edge].sparse_tables
        asked = (
            edge
            for edge in edges.values()
            if edge.declared is not None and edge.declared.moves == "keys"
        )
        return _no_keys(next(e for e in asked if e.sparse_tables == tables), 1)

    def distributed_lookup_table(
        self, tables: str | tuple[str, ...], keys: BatchKeys | AskedKeys
    ) -> Any:
        if isinstance(tables, str):
            return self._rows_of(tables, keys)
        return tuple(self._rows_of(table, keys) for table in tables)

    def _rows_of(self, table: str, keys: BatchKeys | AskedKeys) -> Any:
        from placer.runtime.exchange.row_exchange import AskedKeys, PartsOfRows

        held = self._rows().lookups.tables[table]
        if isinstance(keys, AskedKeys):
            return PartsOfRows(
                (_zeros(held.dtype, (0, held.settings.dim)),) * len(keys.parts)
            )
        self._rows().keys.choose_sizes()
        return _zeros(held.dtype, (keys.size, held.settings.dim))

    def receive_rows(self, edge: int, *keys: BatchKeys) -> tuple[Array, ...]:
        self._rows().keys.choose_sizes()
        values = self._values(edge)
        return tuple(
            _zeros(value.dtype, (each.size, int(value.shape[1])))
            for value, each in zip(values, keys, strict=True)
        )

    def receive_row_gradients(self, edge: int) -> tuple[PartsOfRows, ...]:
        return self._gradients_of_rows(edge, len(self.exchange.edges[edge].sources))

    def pushed_rows(self, message: WorkerMessage) -> tuple[PartsOfRows, ...]:
        return self._gradients_of_rows(message.edge, 1)

    def _gradients_of_rows(self, edge: int, nodes: int) -> tuple[PartsOfRows, ...]:
        from placer.runtime.exchange.row_exchange import PartsOfRows

        return tuple(
            PartsOfRows((_zeros(value.dtype, (0, int(value.shape[1]))),) * nodes)
            for value in self._values(edge)
        )

    def exact_squares_of_rows(self, table: str, total: Any) -> Array:
        return self.exact_squares(total.gradients)

    def _rows(self) -> RowCalls:
        assert self.row_calls is not None
        return self.row_calls

    def _values(self, edge: int) -> Sequence[EdgeValue]:
        return self.exchange.edges[edge].values


def _no_keys(edge: Edge, nodes: int) -> tuple[AskedKeys, ...]:
    """Return no keys of each node, with scores and times if the edge carries them."""
    from placer.runtime.exchange.row_exchange import AskedKeys

    dtypes = {"scores": np.float32, "times": np.uint32}
    found = []
    for value in edge.values:
        statistics = [
            Statistic(each.what, each.tables, np.empty(0, dtypes[each.what]))
            for each in value.statistics
        ]
        none = np.empty(0, np.uint64), np.empty(0, np.uint32)
        parts = [KeyPart(*none, statistics, value.tables) for _ in range(nodes)]
        found.append(AskedKeys(tuple(parts)))
    return tuple(found)


def _zeros(dtype: npt.DTypeLike, shape: Iterable[int]) -> Array:
    array = aligned.zeros(tuple(shape), np.dtype(dtype))
    array.flags.writeable = False
    return array
