"""Shows the tables of a build: the blocks and partitions on each node, and the
balance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.table import Table as Grid
from rich.text import Text

from placer.compiler.graph.stored_bytes import state_bytes
from placer.place.node_kinds import NodeId
from placer.place.types import ITEM_BYTES
from placer.plan.plan import NodePlan, Plan, SparseTable, Table
from placer.plan.settings.training.optimizers import OPTAX, read_rule
from placer.plan.settings.training.slicing import Block
from placer.plan.table_text import (
    describe_optimizer,
    describe_optimizer_of_rows,
    describe_partitions,
    table_ids,
)
from placer.report.console import grid
from placer.report.numbers import format_count, format_size, plural
from placer.report.sparse_tables import format_empty_bytes, format_row_bytes


def item_bytes(plan: Plan) -> dict[str, int]:
    """Return the bytes of one element, for each parameter."""
    return {p.name: ITEM_BYTES[p.dtype] for p in plan.parameters}


def block_bytes(block: Block, items: Mapping[str, int]) -> int:
    return (block.stop - block.start) * items[block.parameter]


def slot_bytes(plan: Plan, table: Table, items: Mapping[str, int]) -> int:
    """Return the bytes of the optimizer's state for the blocks of a dense table."""
    if table.rule is None:
        return 0
    if table.rule == OPTAX:
        made = plan.transformations[table.transformation]
        return sum(state_bytes(made, b.parameter, b.numel) for b in table.blocks)
    slots = len(read_rule(table.rule, table.hyper).first_slots)
    return slots * _table_bytes(table, items)


def table_views(plan: Plan) -> Iterator[RenderableType]:
    """Yield a view of each table, then how evenly nodes of a kind store the parameters.
    The balance excludes optimizer slots, workers' own copies and sparse tables."""
    items, ids = item_bytes(plan), table_ids(plan)
    with_blocks = {_kind(node) for node in plan.nodes if node.tables}
    for node in plan.nodes:
        sparse = [each for each in plan.sparse_tables if node.name in each.holders]
        if _kind(node) not in with_blocks and not sparse:
            continue
        if not node.tables and _kind(node) in with_blocks:
            which = " of dense tables" if sparse else ""
            yield Text(f"{node.name} has no blocks{which}", "bold yellow")
        for table in node.tables:
            count = plural(len(table.blocks), "block")
            stored = f"{count} of {format_size(_table_bytes(table, items))}"
            text = f"  {stored}  {describe_optimizer(plan, table)}"
            yield _head(node, ids[table.name], table.name, text)
            yield _grid(table, items)
        for each in sparse:
            text = f"  {_stored_rows(each, node)}  {describe_optimizer_of_rows(each)}"
            yield _head(node, ids[each.name], each.name, text)
        yield Text()
    for kind in dict.fromkeys(map(_kind, plan.nodes)):
        if kind in with_blocks:
            yield from _balance(plan, kind)


def _head(node: NodePlan, number: int, name: str, text: str) -> Text:
    head = Text(f"{node.name}  table {number}  {name}", "bold")
    return head.append(text, "not bold")


def _stored_rows(table: SparseTable, node: NodePlan) -> str:
    rows = f"rows of width {table.settings.dim:,}, {format_row_bytes(table)} each"
    empty = f"{format_empty_bytes(table, node.name)} without rows"
    return f"{describe_partitions(table, node.name)}, {rows}, {empty}"


def stored_by_kind(plan: Plan) -> dict[str, dict[str, int]]:
    """Return the bytes of parameters on each node, by node kind and node.

    Optimizer slots, workers' own copies and sparse tables are left out, and so are kinds
    without dense tables.
    """
    items = item_bytes(plan)
    found: dict[str, dict[str, int]] = {}
    for kind in dict.fromkeys(_kind(node) for node in plan.nodes if node.tables):
        for node in plan.nodes:
            stored = [table for table in node.tables if not table.local]
            if _kind(node) == kind and (stored or not node.tables):
                nbytes = sum(_table_bytes(table, items) for table in stored)
                found.setdefault(kind, {})[node.name] = nbytes
    return found


def _balance(plan: Plan, kind: str) -> Iterator[Text]:
    """Yield how evenly nodes of a kind store the parameters, if they store any."""
    loads = stored_by_kind(plan).get(kind, {}).values()
    if not loads:
        return
    mean = sum(loads) / len(loads)
    ratio = max(loads) / mean if mean else 1.0
    yield Text(
        f"balance of {kind} without slots: largest {format_size(max(loads))}, "
        f"mean {format_size(mean)}, largest / mean {ratio:.3f}"
    )


def _table_bytes(table: Table, items: Mapping[str, int]) -> int:
    return sum(block_bytes(block, items) for block in table.blocks)


def _grid(table: Table, items: Mapping[str, int]) -> Grid:
    names = ("  block", "parameter", "elements", "shape", "bytes")
    shown = grid(*names, numbers=("elements", "bytes"))
    for block in table.blocks:
        shown.add_row(
            f"  {block.name}",
            block.parameter,
            format_range(block.start, block.stop),
            str(list(block.shape)),
            format_count(block_bytes(block, items)),
        )
    return shown


def format_range(start: int, stop: int) -> str:
    """Format a flat range of elements, including the last one."""
    return f"{format_count(start)}-{format_count(stop - 1)}"


def _kind(node: NodePlan) -> str:
    return NodeId(node.name).kind
