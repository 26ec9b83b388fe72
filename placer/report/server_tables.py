"""Shows the tables of a build: which node stores which blocks, and the balance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from rich.table import Table as Grid
from rich.text import Text

from placer.build.plan import NodePlan, Plan, Table
from placer.config import optimizers
from placer.config.slicing import Block
from placer.report.numbers import format_count, format_size, plural
from placer.types import ITEM_BYTES


@dataclass(frozen=True, slots=True)
class Balance:
    """The balance of blocks over nodes: the largest and the mean load, in bytes.

    Their ratio is 1 if all nodes store the same.
    """

    largest: int
    mean: float

    @property
    def ratio(self) -> float:
        return self.largest / self.mean if self.mean else 1.0


def nodes_of_table_kinds(plan: Plan) -> list[NodePlan]:
    """Return the nodes that have tables, and all other nodes of the same kinds."""
    kinds = {_kind(node) for node in plan.nodes if node.tables}
    return [node for node in plan.nodes if _kind(node) in kinds]


def node_bytes(plan: Plan, node: NodePlan) -> int:
    """Return the bytes of the parameters on a node, without optimizer slots."""
    items = item_bytes(plan)
    return sum(
        block_bytes(block, items) for table in node.tables for block in table.blocks
    )


def balances(plan: Plan) -> dict[str, Balance]:
    """Return the balance over the nodes of each kind that stores blocks."""
    loads: dict[str, list[int]] = {}
    for node in nodes_of_table_kinds(plan):
        loads.setdefault(_kind(node), []).append(node_bytes(plan, node))
    return {k: Balance(max(each), sum(each) / len(each)) for k, each in loads.items()}


def item_bytes(plan: Plan) -> dict[str, int]:
    """Return the bytes of one element, for each parameter."""
    return {p.name: ITEM_BYTES[p.dtype] for p in plan.parameters}


def block_bytes(block: Block, items: Mapping[str, int]) -> int:
    return (block.stop - block.start) * items[block.parameter]


def table_views(plan: Plan) -> Iterator[RenderableType]:
    """Yield a view of each table, and at the end the balance."""
    items = item_bytes(plan)
    for node in nodes_of_table_kinds(plan):
        total = format_size(node_bytes(plan, node))
        if not node.tables:
            yield Text(f"{node.name} has no blocks", "bold yellow")
        for table in node.tables:
            blocks = plural(len(table.blocks), "block")
            head = Text(f"{node.name}  {table.name}", "bold")
            yield head.append(
                f"  {blocks} of {total}  {describe_optimizer(table)}", "not bold"
            )
            yield _grid(table, items)
        yield Text()
    for kind, balance in balances(plan).items():
        yield Text(
            f"balance of {kind}: largest {format_size(balance.largest)}, "
            f"mean {format_size(balance.mean)}, largest / mean {balance.ratio:.3f}"
        )


def describe_optimizer(table: Table) -> str:
    """Describe the optimizer of a table in one line."""
    if table.rule is None:
        return "not trained"
    rate = f"learning rate {_format_setting(table.learning_rate)}"
    hyper = [f"{name} {_format_hyper(value)}" for name, value in table.hyper.items()]
    slots = optimizers.slots(table.rule, table.hyper)
    slot_text = f"slots {' and '.join(slots)}" if slots else "no slots"
    return f"{table.rule}: {', '.join([rate, *hyper])}; {slot_text}"


def _grid(table: Table, items: Mapping[str, int]) -> Grid:
    grid = Grid(box=None, pad_edge=False, header_style="dim")
    grid.add_column("  block")
    grid.add_column("parameter")
    grid.add_column("elements", justify="right")
    grid.add_column("shape")
    grid.add_column("bytes", justify="right")
    for block in table.blocks:
        grid.add_row(
            f"  {block.name}",
            block.parameter,
            format_range(block.start, block.stop),
            str(list(block.shape)),
            format_count(block_bytes(block, items)),
        )
    return grid


def format_range(start: int, stop: int) -> str:
    """Format a flat range of elements, including the last one."""
    return f"{format_count(start)}-{format_count(stop - 1)}"


def _format_setting(value: Any) -> str:
    """Format a setting, such as a learning rate schedule, as in a spec."""
    if not isinstance(value, Mapping):
        return f"{value:g}" if isinstance(value, float) else str(value)
    pairs = ", ".join(f"{key}: {_format_setting(part)}" for key, part in value.items())
    return f"{{{pairs}}}" if len(value) > 1 else pairs


def _kind(node: NodePlan) -> str:
    return node.name.split(":")[0]


def _format_hyper(value: bool | float) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"
