"""Summarizes a model: its layers, the totals of a step, and the memory of processes."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from rich.console import RenderableType
from rich.table import Table as Grid
from rich.text import Text

from placer.compiler.graph.graph import Graph
from placer.place.ids import format_ids, format_nodes
from placer.place.node_kinds import CPU, NodeId
from placer.place.types import ITEM_BYTES
from placer.plan.plan import NodePlan, Plan, device_peaks
from placer.plan.settings.data.window import Window
from placer.report.console import grid
from placer.report.layers import INPUT, Layer, find_layers
from placer.report.metric_bytes import LEAST, metric_bytes
from placer.report.numbers import format_count, format_flops, format_size, plural
from placer.report.server_tables import block_bytes, item_bytes, slot_bytes
from placer.report.sparse_tables import summarize_table

_MAX_LAYERS = 400
"""The largest number of layers in a summary: the first and the last ones."""


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """The declared bytes and FLOPs of a step, for one process or each of several equal
    ones.

    Attributes:
        values, slots: The bytes of parameters and of the optimizers' state in its tables.
        copies: The other bytes of its tables: values and state while an update makes new
            ones, copies for messages, and sums of gradients.
        peaks: The peak memory of each device, or of equal devices such as "gpu:0-7".
        limits: The memory of a device that the spec gives, by device kind.
    """

    values: int
    slots: int
    copies: int
    activations: int
    peaks: tuple[tuple[str, int], ...]
    limits: tuple[tuple[str, int], ...]
    flops: int

    @property
    def devices(self) -> str:
        """The peak of each device and its limit, as text."""
        return ", ".join(
            f"{name} {format_size(peak)}"
            f"{f' of {format_size(limit)}' if limit is not None else ''}"
            for name, peak, limit in self.limited_peaks
        )

    @property
    def limited_peaks(self) -> Iterator[tuple[str, int, int | None]]:
        """The name, the peak and the limit of each device, or of equal devices."""
        limits = dict(self.limits)
        for name, peak in self.peaks:
            yield name, peak, limits.get(name.partition(":")[0])


def summarize(plan: Plan, step: Graph) -> Iterator[RenderableType]:
    """Yield the summary of a model, from its plan and the graph of a training step."""
    title = f"{plan.name}: {format_nodes(node.name for node in plan.nodes)}"
    layers = find_layers(plan, step)
    yield Text(title, "bold")
    yield Text()
    yield _layer_table(layers)
    yield Text()
    yield _totals(plan, step, layers)
    yield Text()
    yield _memory_table(process_memory(plan))


def process_memory(plan: Plan) -> dict[str, ProcessMemory]:
    """Return the memory and FLOPs of processes, by the names of their nodes. Equal
    processes of a kind share an entry."""
    items = item_bytes(plan)
    groups: dict[tuple[str, int, ProcessMemory], list[str]] = {}
    for process, nodes in plan.processes.items():
        key = NodeId(process).kind, len(nodes), _memory_of(plan, nodes, items)
        groups.setdefault(key, []).extend(node.name for node in nodes)
    return {format_nodes(names): memory for (*_, memory), names in groups.items()}


def _memory_of(
    plan: Plan, nodes: Sequence[NodePlan], items: Mapping[str, int]
) -> ProcessMemory:
    tables = [table for node in nodes for table in node.tables]
    values = sum(block_bytes(block, items) for t in tables for block in t.blocks)
    slots = sum(slot_bytes(plan, table, items) for table in tables)
    return ProcessMemory(
        values,
        slots,
        sum(node.table_bytes for node in nodes) - values - slots,
        sum(node.activation_bytes for node in nodes),
        _peaks(nodes),
        _limits(nodes[0]),
        sum(n.flops + n.replicated_flops + n.exchange_flops for n in nodes),
    )


def _limits(node: NodePlan) -> tuple[tuple[str, int], ...]:
    host = () if node.memory is None else ((CPU, node.memory),)
    return (*host, *node.device_memory.items())


def _peaks(nodes: Sequence[NodePlan]) -> tuple[tuple[str, int], ...]:
    """Return the peak of each device of a process; equal devices are one entry."""
    ids: dict[tuple[str, int], list[int]] = {}
    for device, nbytes in device_peaks(nodes).items():
        kind, _, number = device.partition(":")
        ids.setdefault((kind, nbytes), []).append(int(number))
    return tuple(
        (f"{kind}:{format_ids(sorted(numbers))}", nbytes)
        for (kind, nbytes), numbers in ids.items()
    )


def _layer_table(layers: Sequence[Layer]) -> Grid:
    """Return the table of layers. Equal places and equal nodes with parameters have no
    columns; `_totals` names them once."""
    total = sum(layer.flops for layer in layers)
    shares_place, stored = len(_places(layers)) == 1, _stored(layers)
    sends = any(layer.sent for layer in layers)
    left_out = len(layers) - _MAX_LAYERS
    if left_out > 0:
        half = _MAX_LAYERS // 2
        gap = Layer(f"… {left_out:,} more layers …", "", "", 0, False, "")
        layers = [*layers[:half], gap, *layers[-half:]]
    columns: dict[str, list[str]] = {
        "layer": [layer.name for layer in layers],
        "kind": [layer.kind for layer in layers],
        "output": [layer.output for layer in layers],
        "params": [_count(layer) for layer in layers],
    }
    if not shares_place:
        columns["place"] = [_short_place(layer.place) for layer in layers]
    if stored is None:
        columns["stored"] = [layer.stored for layer in layers]
    if sends:
        sent = (format_size(layer.sent) if layer.sent else "" for layer in layers)
        columns["sends"] = [*sent]
    if total:
        columns["FLOPs"] = [_share(layer.flops, total) for layer in layers]
    table = grid(*columns, numbers=("params", "sends", "FLOPs"))
    for column, name in zip(table.columns, columns, strict=True):
        column.overflow = "ellipsis" if name == "kind" else "fold"
        column.no_wrap = name not in ("layer", "kind", "stored")
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*map(Text, cells))  # Text, because brackets are not markup here.
    return table


def _places(layers: Sequence[Layer]) -> list[str]:
    return [*dict.fromkeys(layer.place for layer in layers)]


def _stored(layers: Sequence[Layer]) -> str | None:
    """Return where the parameters of all layers are stored; None if the layers differ."""
    having = [layer for layer in layers if layer.stored]
    nodes = {layer.stored for layer in having}
    if len(nodes) == 1:
        return nodes.pop()
    if all(layer.stored == layer.nodes for layer in having):
        return "the nodes of their layers" if having else ""
    return None


def _short_place(place: str) -> str:
    """Return a place as its node and device: `worker:0/cpu` for `/node:worker:0/cpu`."""
    return place.replace("/node:", "")


def _count(layer: Layer) -> str:
    """Format the number of elements in the parameters of a layer."""
    if layer.kind in (INPUT, ""):
        return ""
    if layer.shares:
        return "shared"
    counts = [format_count(layer.parameters)] if layer.parameters else []
    if layer.per_key:
        counts.append(f"{format_count(layer.per_key)} per key")
    return " + ".join(counts) or "0"


def _share(part: int, total: int) -> str:
    """Format a part of a total as a percentage; empty for 0."""
    if not part:
        return ""
    return "<1%" if 200 * part < total else f"{part / total:.0%}"


def _data(plan: Plan) -> str:
    phases = [(plan.train, {node.name: node.step.reads for node in plan.nodes})]
    if plan.evaluation is not None:
        reads = {n.name: n.evaluation.reads for n in plan.nodes if n.evaluation}
        phases.append((plan.evaluation, reads))
    sources: dict[str, dict[str, None]] = {}
    for data, reads in phases:
        text = data.source
        if isinstance(data.shuffle, Window):
            inputs = {read.input for each in reads.values() for read in each}
            nbytes = data.shuffle.window * _row_bytes(plan, inputs)
            rows = plural(data.shuffle.window, "row")
            text += (
                f" (a window of {rows}, {format_size(nbytes)} on all nodes together)"
            )
        who = format_nodes(name for name, each in reads.items() if each)
        sources.setdefault(who, {})[text] = None
    return "; ".join(f"{', '.join(of)}, read by {who}" for who, of in sources.items())


def _row_bytes(plan: Plan, inputs: Container[str]) -> int:
    return sum(
        prod(column.shape) * ITEM_BYTES[column.dtype]
        for column in plan.columns
        if column.name in inputs
    )


def _totals(plan: Plan, step: Graph, layers: Sequence[Layer]) -> Grid:
    sizes = {p.name: prod(p.shape) for p in plan.parameters}
    trained = sum(sizes[p.name] for p in plan.parameters if p.trainable)
    states = {
        op.attrs.get("whole", op.name)
        for op in step.parameters
        if op.attrs.get("state")
    }
    state = sum(sizes[name] for name in states)
    frozen = sum(sizes.values()) - trained - state
    nbytes = sum(sizes[p.name] * ITEM_BYTES[p.dtype] for p in plan.parameters)
    sent = sum(edge.nbytes for edge in plan.step_edges)
    kinds = {
        "trainable": trained,
        "frozen": frozen,
        "of state, such as running means": state,
    }
    parts = plan.settings.train.microbatches
    work = {
        "repeated on several nodes": sum(n.replicated_flops for n in plan.nodes),
        "for sums over nodes": sum(n.exchange_flops for n in plan.nodes),
    }
    flops = sum(node.flops for node in plan.nodes) + sum(work.values())
    table = grid("", "", numbers=())
    table.show_header = False
    of_kinds = ", ".join(f"{format_count(n)} {what}" for what, n in kinds.items() if n)
    of_work = ", ".join(f"{format_flops(n)} {what}" for what, n in work.items() if n)
    places, stored = _places(layers), _stored(layers)
    rows = {"place": f"all layers at {places[0]}"} if len(places) == 1 else {}
    rows |= {
        "parameters": f"{format_count(sum(sizes.values()))} ({format_size(nbytes)}):"
        f" {of_kinds or 'none'}" + (f"; stored on {stored}" if stored else ""),
        "data": _data(plan),
        "a step": f"{plural(plan.train.batch, 'row')}"
        + (f" in {parts} microbatches" if parts > 1 else ""),
        "": format_flops(flops) + (f", including {of_work}" if of_work else ""),
        " ": f"{format_size(sent)} sent on {plural(len(plan.step_edges), 'edge')}",
    }
    if (of_metrics := metric_bytes(plan, step)) >= LEAST:
        rows["  "] = f"{format_size(of_metrics)} of metrics sent to {plan.control}"
    for name, text in rows.items():
        table.add_row(name, text)
        if name == "parameters":
            for i, each in enumerate(plan.sparse_tables):
                head = plural(len(plan.sparse_tables), "sparse table")
                table.add_row("" if i else head, summarize_table(each))
    return table


def _memory_table(rows: Mapping[str, ProcessMemory]) -> Grid:
    columns: dict[str, list[str]] = {
        "each process": [*rows],
        "parameters": [format_size(row.values) for row in rows.values()],
        "slots": [format_size(row.slots) for row in rows.values()],
    }
    if any(row.copies for row in rows.values()):
        columns["copies"] = [format_size(row.copies) for row in rows.values()]
    columns["activations"] = [format_size(row.activations) for row in rows.values()]
    columns["FLOPs"] = [format_flops(row.flops) for row in rows.values()]
    numbers = [*columns][1:]
    columns["peak of devices"] = [
        row.devices.replace(", ", "\n") for row in rows.values()
    ]
    table = grid(*columns, numbers=numbers)
    for column in table.columns[1:-1]:
        column.no_wrap = True
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*cells)
    return table
