"""How much memory a step needs on a host, and whether the spec's devices have it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from placer.errors import SpecError
from placer.graph import optimizers
from placer.graph.graph import Graph
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
    tables_bytes = sum(_table_bytes(graph, table) for table in tables)
    return _peak(graph, host, None) + tables_bytes


def device_bytes(graph: Graph, host: str, tables: Sequence[Table]) -> dict[str, int]:
    """The same of each device that something is on. Devices that compute together have
    each a share of the rows, and all of the rest."""
    found: dict[str, int] = {}
    places = {graph.devices(op): op.place for op in graph.on(host)}
    for devices, place in places.items():
        assert place is not None
        held = [table for table in tables if table.devices == devices]
        needed = _peak(graph, host, devices)
        needed += sum(_table_bytes(graph, table) for table in held)
        for at in graph.cluster.resolve(place):
            if at.host == host:
                device = f"{at.device}:{at.device_id}"
                found[device] = found.get(device, 0) + needed
    return found


def _peak(graph: Graph, host: str, devices: str | None) -> int:
    """The most that is alive at once of what is made on these devices of the host, or
    on any."""
    mine = graph.on(host)
    last = {name: i for i, op in enumerate(mine) for name in op.operands}
    ends: dict[int, int] = {}
    sizes: dict[tuple[int, str | None, int, int, int], int] = {}  # a type by identity
    shares: dict[int, int] = {}  # of a place, by identity
    alive = peak = 0
    for i, op in enumerate(mine):
        here = devices is None or graph.devices(op) == devices
        # Blocks are views, and parameters are the tables'.
        if here and op.kind not in FLAT and op.kind != "parameter":
            hosts = graph.hosts(op)
            index = hosts.index(host)
            share = shares.get(id(op.place))
            if share is None:
                assert op.place is not None
                share = len(graph.cluster.resolve(op.place)) // len(hosts)
                share = shares[id(op.place)] = 1 if devices is None else share
            for value in op.results:
                key = id(value.type), value.layout, index, len(hosts), share
                size = sizes.get(key)
                if size is None:
                    rows = graph.batch
                    if value.layout == "S":
                        low, high = part(graph.batch, index, len(hosts))
                        rows = high - low
                    size = value.type.nbytes(graph.batch, rows // share)
                    sizes[key] = size
                alive += size
                end = max(last.get(value.name, i), i)
                ends[end] = ends.get(end, 0) + size
        peak = max(peak, alive)
        alive -= ends.pop(i, 0)
    return peak


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
        for device, needed in node.device_bytes.items():
            memory = model.memory.get((kind, device.split(":")[0]))
            if memory is not None and needed > memory.nbytes:
                raise SpecError(
                    f"a step on {node.name} needs {needed:,} bytes of {device}, which "
                    f"holds {memory.nbytes:,}",
                    span=memory.span,
                    hint="use a smaller batch, or more nodes",
                )
