"""The tables of a build for a person: which node holds which blocks, how evenly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from rich.table import Table as Grid
from rich.text import Text

from placer.build.plan import Node, Plan, Table, TableBlock
from placer.config import optimizers
from placer.report.numbers import count, plural, size
from placer.types import ITEM_BYTES


@dataclass(frozen=True, slots=True)
class Balance:
    """How evenly the blocks lie over nodes: the largest load against the mean, 1 when
    it is even."""

    largest: int
    mean: float

    @property
    def ratio(self) -> float:
        return self.largest / self.mean if self.mean else 1.0


def holders(plan: Plan) -> list[Node]:
    """The nodes that hold tables, and those of the same kinds that hold none."""
    kinds = {_kind(node) for node in plan.nodes if node.tables}
    return [node for node in plan.nodes if _kind(node) in kinds]


def node_bytes(plan: Plan, node: Node) -> int:
    """Bytes of the parameters on a node, without what the optimizer keeps of them."""
    items = item_bytes(plan)
    return sum(
        block_bytes(block, items) for table in node.tables for block in table.blocks
    )


def balances(plan: Plan) -> dict[str, Balance]:
    """The balance over the nodes of each kind that holds blocks."""
    loads: dict[str, list[int]] = {}
    for node in holders(plan):
        loads.setdefault(_kind(node), []).append(node_bytes(plan, node))
    return {k: Balance(max(each), sum(each) / len(each)) for k, each in loads.items()}


def item_bytes(plan: Plan) -> dict[str, int]:
    """Bytes of one element of each parameter."""
    return {p.name: ITEM_BYTES[p.dtype] for p in plan.parameters}


def block_bytes(block: TableBlock, items: Mapping[str, int]) -> int:
    return (block.stop - block.start) * items[block.parameter]


def table_views(plan: Plan) -> Iterator[RenderableType]:
    """A table for each node that holds blocks; last, how even they are."""
    items = item_bytes(plan)
    for node in holders(plan):
        total = size(node_bytes(plan, node))
        if not node.tables:
            yield Text(f"{node.name} holds no block", "bold yellow")
        for table in node.tables:
            blocks = plural(len(table.blocks), "block")
            head = Text(f"{node.name}  {table.name}", "bold")
            yield head.append(f"  {blocks} of {total}  {describe(table)}", "not bold")
            yield _grid(table, items)
        yield Text()
    for kind, even in balances(plan).items():
        yield Text(
            f"balance of {kind}: largest {size(even.largest)}, mean {size(even.mean)}, "
            f"largest / mean {even.ratio:.3f}"
        )


def describe(table: Table) -> str:
    """The optimizer of a table in a line."""
    if table.rule is None:
        return "not trained"
    rate = f"learning rate {_setting(table.learning_rate)}"
    hyper = [f"{name} {_told(value)}" for name, value in table.hyper.items()]
    slots = optimizers.slots(table.rule, table.hyper)
    keeps = f"keeps {' and '.join(slots)} of each element" if slots else "keeps nothing"
    return f"{table.rule}: {', '.join([rate, *hyper])}; {keeps}"


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
            elements(block.start, block.stop),
            str(list(block.shape)),
            count(block_bytes(block, items)),
        )
    return grid


def elements(start: int, stop: int) -> str:
    """A flat range of elements, its last one included."""
    return f"{count(start)}-{count(stop - 1)}"


def _setting(value: Any) -> str:
    """A schedule as it is written in a spec."""
    if not isinstance(value, Mapping):
        return f"{value:g}" if isinstance(value, float) else str(value)
    pairs = ", ".join(f"{key}: {_setting(part)}" for key, part in value.items())
    return f"{{{pairs}}}" if len(value) > 1 else pairs


def _kind(node: Node) -> str:
    return node.name.split(":")[0]


def _told(value: bool | float) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"
