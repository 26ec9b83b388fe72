"""Creates the sparse tables of a node, and its side of the edges that carry their rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from msgspec import convert, structs

from placer.channel.interface import Array, Channel
from placer.plan.plan import Edge, NodePlan, Plan, SparseTable
from placer.runtime.asynchronous.worker_end import WorkerEnd
from placer.runtime.control.events import LOADING, UPDATES, NodeWarning, Notice
from placer.runtime.control.execution import Execution
from placer.runtime.control.table_counts import TableCounts
from placer.runtime.node.learning_rates import LearningRates
from placer.runtime.saving.row_files import load_rows, read_stored
from placer.runtime.saving.start_parameters import StartParameters
from placer.system.memory.limit import available_nbytes

SHARES_INDEXES = True
"""Whether tables share indexes as their plan says. Tests compare a run without."""

if TYPE_CHECKING:
    from placer.runtime.exchange.row_exchange import RowExchange
    from placer.runtime.node.row_calls import RowCalls
    from placer.tables.sparse.memory import MemoryBudget
    from placer.tables.sparse.table import SparseTable as HeldTable


def make_sparse_tables(
    execution: Execution, start: StartParameters | None, *, trains: bool = True
) -> dict[str, HeldTable]:
    """Return the sparse tables whose partitions a node holds, by name.

    Args:
        execution: the node's run.
        start: the parameters and rows to start from, if any.
        trains: whether the tables are updated. Tables without updates have no slots.
    """
    plan, me = execution.plan, execution.me
    if not plan.sparse_tables:
        return {}
    tables = {table.name: table for table in plan.sparse_tables}
    memory = _memory_of(execution)
    if any(me.name in table.holders for table in tables.values()):
        execution.report_state(UPDATES)
    held: dict[str, HeldTable] = {}
    kept = execution.checkpointing is not None or execution.publishing is not None
    for name, table in tables.items():
        if me.name in table.holders:
            shared = table.index_of if trains and SHARES_INDEXES else None
            held[name] = _make_table(
                table,
                plan.settings.seed,
                memory,
                table.partitions_of(me.name),
                None if shared is None else held[shared],
                trains=trains,
                saves=trains and kept,
            )
    if start is not None:
        checkpoint = start.checkpoint
        assert checkpoint is not None  # `open_start` has checked it
        execution.report_state(LOADING)
        load_rows(
            plan,
            me.name,
            held,
            checkpoint.manifest.sparse,
            read_stored(plan, me.name, checkpoint),
            lambda text: execution.report(Notice(text)),
            only_values=True,
        )
    return held


def open_row_exchange(
    plan: Plan, me: NodePlan, channel: Channel, edges: Mapping[int, Edge]
) -> RowExchange | None:
    """Return a node's side of edges that carry rows by key; None without sparse tables.
    `channel` and `edges` are the program's channel and edges (by number)."""
    if not plan.sparse_tables:
        return None
    from placer.runtime.exchange.row_exchange import RowExchange

    tables = {table.name: table for table in plan.sparse_tables}
    return RowExchange(me.name, channel, edges, tables)


def make_row_calls(
    execution: Execution,
    exchange: RowExchange | None,
    tables: dict[str, HeldTable],
    rates: LearningRates,
    next_rows: Callable[[str], Array],
    communicators: Mapping[int, WorkerEnd] | None = None,
) -> RowCalls | None:
    """Return the calls of a node's program on sparse tables; None without sparse tables.

    Args:
        execution: the node's run.
        exchange: the node's side of edges that carry rows by key.
        tables: the sparse tables whose partitions the node holds, by name.
        rates: the learning rates of all tables.
        next_rows: returns the node's rows of an input in the next step.
        communicators: the `WorkerEnd` of each asynchronous table, by edge number.
    """
    if exchange is None:
        return None
    from placer.runtime.asynchronous.asked_rows import AskedRows
    from placer.runtime.node.collected_keys import CollectedKeys
    from placer.runtime.node.memory_watch import MemoryWatch
    from placer.runtime.node.row_calls import RowCalls
    from placer.runtime.node.row_lookups import RowLookups
    from placer.runtime.node.row_pushes import RowPushes

    plan, node, position = execution.plan, execution.me.name, rates.position
    ends = {
        edge: end
        for edge, end in (communicators or {}).items()
        if isinstance(end, AskedRows)
    }
    keys = CollectedKeys(exchange.tables, position)

    def warn(text: str) -> None:
        execution.report(NodeWarning(f"{node}: {text}"))

    return RowCalls(
        keys,
        RowLookups(position, exchange, tables, keys, ends),
        RowPushes(
            position,
            exchange,
            tables,
            rates,
            ends,
            plan.pushed_rows(node),
            drops_not_finite=plan.settings.train.nan == "warn",
            on_warning=warn,
            on_update=MemoryWatch(node, tables, execution.warned, warn).check,
        ),
        next_rows,
    )


def count_in_tables(
    tables: Mapping[str, HeldTable], since: int = 0
) -> dict[str, TableCounts]:
    """Return the statistics of sparse tables since their creation, after the step `since`."""
    return {
        name: structs.replace(
            convert(table.statistics(), TableCounts, from_attributes=True), since=since
        )
        for name, table in tables.items()
    }


def _memory_of(execution: Execution) -> MemoryBudget:
    """Return the memory for all tables: the spec's limit, or less if memory is short."""
    from placer.tables.sparse.memory import MemoryBudget

    planned = execution.plan.memory_for_rows(execution.me.name)
    left = available_nbytes()
    return MemoryBudget(left if planned is None else min(planned, left))


def _make_table(
    table: SparseTable,
    seed: int,
    memory: MemoryBudget,
    held: range,
    index_of: HeldTable | None,
    *,
    trains: bool,
    saves: bool,
) -> HeldTable:
    from placer.tables.sparse.table import SparseTable as HeldTable

    settings = table.settings
    if not trains:
        settings = structs.replace(settings, rule="sgd", hyper={})
    made = HeldTable(settings, seed, table.dtype, memory, held, index_of)
    made.warm_up(trains=trains, saves=saves)
    return made
