"""Summarizes a model: its layers, the totals of a step, and the memory of processes."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from rich.console import RenderableType
from rich.table import Table as Grid
from rich.text import Text

from placer import ops
from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.keyed import is_keyed, keys_of
from placer.compiler.graph.structural_ops import is_conversion, is_optimizer_part
from placer.place.ids import format_ids, format_nodes
from placer.place.node_kinds import CPU, NodeId
from placer.place.types import ITEM_BYTES, TensorType
from placer.plan.plan import NodePlan, Plan, device_peaks
from placer.plan.settings.data.sources import POSITION
from placer.plan.settings.data.window import Window
from placer.report.console import grid
from placer.report.numbers import format_count, format_flops, format_size, plural
from placer.report.server_tables import block_bytes, item_bytes
from placer.report.sparse_tables import summarize_table

INPUT = "input"
"""The kind of a layer that is an input."""
COMPOSITES = {
    "normalize": "batch_norm",
    "replica_norm": "batch_norm",
    "drop": "dropout",
}
"""Maps an op that only a composite contains to the composite's kind in a spec."""


@dataclass(frozen=True, slots=True)
class Layer:
    """An input or an op of the model as a user wrote it, without its gradient.

    Attributes:
        parameters: Number of elements in its parameters, without those of earlier
            layers.
        per_key: The same for sparse tables, per key.
        shares: Whether earlier layers use all its parameters.
    """

    name: str
    kind: str
    output: str
    parameters: int
    shares: bool
    place: str
    per_key: int = 0


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """The declared bytes and FLOPs of a step, for one process or each of several equal
    ones.

    Attributes:
        values, slots: The bytes in its tables.
        peaks: The peak memory of each device, or of equal devices such as "gpu:0-7".
        limits: The memory of a device that the spec gives, by device kind.
    """

    values: int
    slots: int
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
    yield Text(title, "bold")
    yield Text()
    yield _layer_table(find_layers(plan, step))
    yield Text()
    yield _totals(plan, step)
    yield Text()
    yield _memory_table(process_memory(plan))


def find_layers(plan: Plan, step: Graph) -> list[Layer]:
    """Return the inputs and the layers of a model, in program order. Ops whose names
    start with the same name of a spec form one layer: the parts of a composite, or of a
    function at one place."""
    groups: dict[tuple[str, str], list[Op]] = {}
    for op in step.ops:
        if _is_of_model(op):
            key = op.attrs["input"] if op.kind == "read" else op.name.partition(".")[0]
            place = "" if op.kind == "read" else str(op.place)
            groups.setdefault((key, place), []).append(op)
    sizes = {p.name: prod(p.shape) for p in plan.parameters}
    columns = {table.name: table.settings.dim for table in plan.sparse_tables}
    names = [name for name, _ in groups]
    order = {op: i for i, op in enumerate(step.ops)}
    counted: set[str] = set()
    layers = []
    for (name, _), parts in sorted(
        groups.items(), key=lambda group: order[_main(group[0][0], group[1])]
    ):
        used = {
            parameter
            for op in parts
            for operand in op.operands
            if (parameter := _parameter_of(step, operand, sizes)) is not None
        }
        layers.append(
            Layer(
                # A function at several places has one layer at each place.
                name if names.count(name) == 1 else _main(name, parts).name,
                _kind(name, parts),
                format_output(_main(name, parts)),
                sum(sizes.get(parameter, 0) for parameter in used - counted),
                bool(used) and used <= counted,
                ", ".join(dict.fromkeys(str(op.place) for op in parts)),
                sum(columns.get(parameter, 0) for parameter in used - counted),
            )
        )
        counted |= used
    return layers


def _is_of_model(op: Op) -> bool:
    if op.kind == "read":
        return bool(op.attrs["input"] != POSITION)
    return (
        op.is_computed
        and not op.is_gradient
        and not op.attrs.get("again", False)
        and not is_conversion(op.kind)
        and not is_optimizer_part(op.kind)
        and op.kind != "accumulate"
        and "grad" not in op.name.split(".")
    )


def _parameter_of(step: Graph, operand: str, parameters: dict[str, int]) -> str | None:
    """Return the parameter behind an operand, such as `h.w` for its copy `h.w.copy`.
    For rows of a sparse table, return the table. None for other operands."""
    if is_keyed(step, operand):
        return str(keys_of(step, operand).attrs["table"])
    while operand not in parameters:
        operand, dot, _ = operand.rpartition(".")
        if not dot:
            return None
    return operand


def _main(name: str, parts: Sequence[Op]) -> Op:
    """Return the op whose result other layers use: the layer's namesake, or the
    last.
    """
    return next((op for op in parts if op.name == name), parts[-1])


def _kind(name: str, parts: Sequence[Op]) -> str:
    op = _main(name, parts)
    if op.kind == "read":
        return INPUT
    if op.kind == "call":
        return f"call {op.attrs['fn']}" if "fn" in op.attrs else op.kind
    kinds = {part.kind for part in parts}
    if "sample_classes" in kinds:
        return op.kind.removesuffix("_loss")
    composites = (COMPOSITES[kind] for kind in kinds & COMPOSITES.keys())
    return next(composites, op.kind)


def format_output(op: Op) -> str:
    """Format the first result of an op, and the number of further results."""
    if op.is_computed and ops.find(op.kind).finalizer is not None:
        return "metric"
    first, *others = op.tensors
    kind = first.type
    assert isinstance(kind, TensorType)
    shape = f"[{', '.join(map(str, kind.shape))}]" if kind.shape else "scalar"
    if not kind.is_float:
        shape = kind.dtype + shape
    return f"{shape} and {len(others)} more" if others else shape


def process_memory(plan: Plan) -> dict[str, ProcessMemory]:
    """Return the memory and FLOPs of processes, by the names of their nodes. Equal
    processes of a kind share an entry."""
    items = item_bytes(plan)
    groups: dict[tuple[str, int, ProcessMemory], list[str]] = {}
    for process, nodes in plan.processes.items():
        key = NodeId(process).kind, len(nodes), _memory_of(nodes, items)
        groups.setdefault(key, []).extend(node.name for node in nodes)
    return {format_nodes(names): memory for (*_, memory), names in groups.items()}


def _memory_of(nodes: Sequence[NodePlan], items: Mapping[str, int]) -> ProcessMemory:
    values = sum(
        block_bytes(block, items)
        for node in nodes
        for table in node.tables
        for block in table.blocks
    )
    return ProcessMemory(
        values,
        sum(node.table_bytes for node in nodes) - values,
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
    names = ("layer", "kind", "output", "params", "place")
    table = grid(*names, numbers=("params",))
    for column in table.columns:
        column.overflow = "fold"
    table.columns[3].no_wrap = True
    for layer in layers:
        counts = [format_count(layer.parameters)] if layer.parameters else []
        if layer.per_key:
            counts.append(f"{format_count(layer.per_key)} per key")
        count = "shared" if layer.shares else " + ".join(counts) or "0"
        cells = (
            layer.name,
            layer.kind,
            layer.output,
            "" if layer.kind == INPUT else count,
            layer.place,
        )
        table.add_row(*map(Text, cells))  # Text, because brackets are not markup here.
    return table


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


def _totals(plan: Plan, step: Graph) -> Grid:
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
    rows = {
        "parameters": f"{format_count(sum(sizes.values()))} ({format_size(nbytes)}):"
        f" {of_kinds or 'none'}",
        "data": _data(plan),
        "a step": f"{plural(plan.train.batch, 'row')}"
        + (f" in {parts} microbatches" if parts > 1 else ""),
        "": format_flops(flops) + (f", including {of_work}" if of_work else ""),
        " ": f"{format_size(sent)} sent on {plural(len(plan.step_edges), 'edge')}",
    }
    for name, text in rows.items():
        table.add_row(name, text)
        if name == "parameters":
            for i, each in enumerate(plan.sparse_tables):
                head = plural(len(plan.sparse_tables), "sparse table")
                table.add_row("" if i else head, summarize_table(each))
    return table


def _memory_table(rows: Mapping[str, ProcessMemory]) -> Grid:
    names = (
        "each process",
        "parameters",
        "slots",
        "activations",
        "FLOPs",
        "peak of devices",
    )
    table = grid(*names, numbers=names[1:5])
    for column in table.columns[1:5]:
        column.no_wrap = True
    for processes, row in rows.items():
        table.add_row(
            processes,
            *map(format_size, (row.values, row.slots, row.activations)),
            format_flops(row.flops).removesuffix("FLOPs").rstrip(),
            row.devices.replace(", ", "\n"),
        )
    return table
