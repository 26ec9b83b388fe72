"""Shows the tables of a build: which node stores which blocks, and the balance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table as Grid
from rich.text import Text

from placer.build.plan import NodePlan, Plan, Table
from placer.config import optimizers
from placer.config.slicing import Block
from placer.config.update_modes import describe_mode
from placer.node_kinds import NodeId
from placer.report.console import grid
from placer.report.numbers import format_count, format_size, plural
from placer.types import ITEM_BYTES


def item_bytes(plan: Plan) -> dict[str, int]:
    """Return the bytes of one element, for each parameter."""
    return {p.name: ITEM_BYTES[p.dtype] for p in plan.parameters}


def block_bytes(block: Block, items: Mapping[str, int]) -> int:
    return (block.stop - block.start) * items[block.parameter]


def table_views(plan: Plan) -> Iterator[RenderableType]:
    """Yield a view of each table, and at the end the balance: how evenly the nodes of a
    kind store the parameters, without optimizer slots and without a worker's own values."""
    items = item_bytes(plan)
    loads: dict[str, list[int]] = {}
    kinds = {_kind(node) for node in plan.nodes if node.tables}
    for node in plan.nodes:
        if _kind(node) not in kinds:
            continue
        stored = [table for table in node.tables if not table.local]
        if stored or not node.tables:
            load = sum(_table_bytes(table, items) for table in stored)
            loads.setdefault(_kind(node), []).append(load)
        if not node.tables:
            yield Text(f"{node.name} has no blocks", "bold yellow")
        for table in node.tables:
            count = plural(len(table.blocks), "block")
            head = Text(f"{node.name}  {table.name}", "bold")
            yield head.append(
                f"  {count} of {format_size(_table_bytes(table, items))}"
                f"  {describe_optimizer(table)}",
                "not bold",
            )
            yield _grid(table, items)
        yield Text()
    for kind, each in loads.items():
        mean = sum(each) / len(each)
        ratio = max(each) / mean if mean else 1.0
        yield Text(
            f"balance of {kind}: largest {format_size(max(each))}, "
            f"mean {format_size(mean)}, largest / mean {ratio:.3f}"
        )


def describe_optimizer(table: Table) -> str:
    """Describe the optimizer of a table in one line."""
    if table.rule is None:
        return "not trained"
    rate = f"learning rate {_format_setting(table.learning_rate)}"
    hyper = [f"{name} {_format_setting(value)}" for name, value in table.hyper.items()]
    slots = optimizers.slots(table.rule, table.hyper)
    slot_text = f"slots {' and '.join(slots)}" if slots else "no slots"
    mode = f"; update {describe_mode(table.mode)}" if table.mode is not None else ""
    mode = "; this node's own values" if table.local else mode
    return f"{table.rule}: {', '.join([rate, *hyper])}; {slot_text}{mode}"


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


def _format_setting(value: Any) -> str:
    """Format a setting, such as a learning rate schedule, as in a spec."""
    if not isinstance(value, Mapping):
        if isinstance(value, bool):
            return str(value).lower()
        return f"{value:g}" if isinstance(value, float) else str(value)
    pairs = ", ".join(f"{key}: {_format_setting(part)}" for key, part in value.items())
    return f"{{{pairs}}}" if len(value) > 1 else pairs


def _kind(node: NodePlan) -> str:
    return NodeId(node.name).kind
