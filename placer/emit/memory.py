"""How much memory a step needs on a host, and whether the spec's devices have it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from placer.errors import SpecError
from placer.graph import optimizers
from placer.graph.graph import Graph, Value
from placer.graph.model import Model
from placer.graph.rows import part
from placer.graph.structure import FLAT
from placer.graph.types import ITEM_BYTES
from placer.plan import Plan, Table


def peak_bytes(graph: Graph, host: str, tables: Sequence[Table]) -> int:
    """Bytes of the host's tables, and of the values of a step that live at once.

    A value lives from the op that makes it to the last that uses it. What XLA does
    inside a segment, such as fusing or reusing a buffer, is not counted.
    """
    mine = graph.on(host)
    last = {name: i for i, op in enumerate(mine) for name in op.operands}
    ends: dict[int, int] = {}
    sizes: dict[tuple[int, str | None, int, int], int] = {}  # by a type's identity
    alive = peak = 0
    for i, op in enumerate(mine):
        if op.kind not in FLAT and op.kind != "parameter":  # views, and tables' own
            hosts = graph.hosts(op)
            index = hosts.index(host)
            for value in op.results:
                key = id(value.type), value.layout, index, len(hosts)
                size = sizes.get(key)
                if size is None:
                    size = _local_bytes(value, index, len(hosts), graph.batch)
                    sizes[key] = size
                alive += size
                end = max(last.get(value.name, i), i)
                ends[end] = ends.get(end, 0) + size
        peak = max(peak, alive)
        alive -= ends.pop(i, 0)
    return peak + sum(_table_bytes(graph, table) for table in tables)


def _local_bytes(value: Value, index: int, parts: int, batch: int) -> int:
    rows = batch
    if value.layout == "S":
        low, high = part(batch, index, parts)
        rows = high - low
    return value.type.nbytes(batch, rows)


def _table_bytes(graph: Graph, table: Table) -> int:
    """Values, those of the step before unless they are written over, and what the
    optimizer keeps: its state, and the directions of a rule that has them."""
    copies = 1 if table.in_place else 2
    if table.rule is not None:
        copies += len(optimizers.slots(table.rule, table.hyper))
        copies += optimizers.find(table.rule).direction
    return copies * sum(
        prod(block.shape) * ITEM_BYTES[graph.tensor(block.name).dtype]
        for block in table.blocks
    )


def check_memory(plan: Plan, model: Model) -> None:
    """Raise SpecError at the device's memory that a step does not fit into."""
    for node in plan.nodes:
        kind = node.name.split(":")[0]
        for (name, device), memory in model.memory.items():
            used = name == kind and (node.device or "").startswith(f"{device}:")
            if used and node.peak_bytes > memory.nbytes:
                raise SpecError(
                    f"a step on {node.name} needs {node.peak_bytes:,} bytes, and each "
                    f"{device} holds {memory.nbytes:,}",
                    span=memory.span,
                    hint="use a smaller batch, or more nodes",
                )
