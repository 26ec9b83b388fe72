"""Makes the facts of the placement picture from a build."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from placer.compiler.build_or_spec import LoadedBuild
from placer.compiler.graph.graph import Graph, Op
from placer.compiler.schedule.costs import group_by_cost, op_costs
from placer.compiler.schedule.node_classes import NodeClasses
from placer.place.ids import format_nodes
from placer.place.layouts.partition import row_shard
from placer.place.node_kinds import NodeId
from placer.plan.plan import Edge
from placer.report.numbers import plural
from placer.report.page import facts
from placer.report.page.arrows import Pair, divide_edge
from placer.report.page.boxes import Box, Boxes, make_boxes
from placer.report.page.columns import Columns, DeviceColumn, fold_columns
from placer.report.page.contents import (
    bytes_of,
    lines_of,
    reason_of,
    title_of,
    unique,
)
from placer.report.page.layers import Layers
from placer.report.page.modes import mode_of
from placer.report.page.rows import set_rows, share_columns, sort_by_row
from placer.report.page.seconds import calls_of_boxes
from placer.report.server_tables import block_bytes, item_bytes
from placer.report.step.facts import StepTime
from placer.system.garbage_collection import garbage_collection_off

TRAINING = "a training step"
MAX_BOXES = 2000
"""The number of boxes that are drawn. Those in lower rows are counted."""
_MAX_VALUES = 4
"""The number of values that an arrow names."""


@dataclass(frozen=True, slots=True)
class PlacedGraph:
    """The boxes of a build and their columns, from which all facts are made.

    Attributes:
        build: the build.
        graph: the graph of a training step, or of a prediction.
        edges: the edges of the graph in the plan.
        phase: the phase, as `facts.Placement.phase`.
        columns: the groups of equal nodes, and their devices.
        boxes: the boxes before columns share a column. Each has ops of one group only.
        drawn: the boxes of the picture, by row.
        of: the index of the drawn box of each box.
        groups: the nodes of each drawn group.
        devices: for each drawn column, its group and its columns in `columns`.
        flops: the FLOPs of the ops of each drawn box, on all nodes of its column.
        layers: the layers of the graph.
        node_classes: the classes of its nodes.
    """

    build: LoadedBuild
    graph: Graph
    edges: Sequence[Edge]
    phase: str
    columns: Columns
    boxes: Boxes
    drawn: Boxes
    of: Sequence[int]
    groups: Sequence[tuple[str, ...]]
    devices: Sequence[tuple[int, Sequence[DeviceColumn]]]
    flops: Sequence[Mapping[Op, int]]
    layers: Layers
    node_classes: NodeClasses

    @property
    def nodes(self) -> list[tuple[str, ...]]:
        """The nodes of each drawn column."""
        return [self.groups[group] for group, _ in self.devices]

    @property
    def top_boxes(self) -> Sequence[Box]:
        """The boxes of the picture that are drawn."""
        return self.drawn.boxes[:MAX_BOXES]


def placement_of(
    build: LoadedBuild, graph: Graph | None = None, step_time: StepTime | None = None
) -> facts.Placement:
    """Return the placement of a training step. For a build that only predicts, return the
    placement of a prediction.

    Args:
        build: the build.
        graph: the graph of the step or the prediction, if it has been read already.
        step_time: the measured times of a step, if any.
    """
    return draw(place(build, graph), step_time)


def place(build: LoadedBuild, graph: Graph | None = None) -> PlacedGraph:
    """Return the boxes of a build. Arguments as in `placement_of`."""
    with garbage_collection_off():
        return _place(build, drawn_graph(build.graphs) if graph is None else graph)


def _place(build: LoadedBuild, graph: Graph) -> PlacedGraph:
    plan = build.plan
    predicts = graph.name == f"{plan.name}.predict"
    columns = Columns(graph)
    boxes = make_boxes(graph, columns)
    order = {op: i for i, op in enumerate(graph.ops)}
    for directive in (op for op in graph.ops if op.structure.directive):
        _add_directive(graph, columns, boxes, directive)
    first = [min(map(order.__getitem__, box.ops), default=0) for box in boxes.boxes]
    used = {box.column for box in boxes.boxes}
    busy = {columns.columns[number].group for number in used}
    kept = [
        number
        for number, column in enumerate(columns.columns)
        if number in used or column.group not in busy
    ]
    kinds = [columns.groups[columns.columns[n].group][0].kind for n in kept]
    folded = fold_columns([columns.columns[n] for n in kept], kinds)
    target, shared, members = _new_columns(kept, folded, len(columns.columns))
    result = share_columns(boxes, target, shared, first)
    groups, devices = _drawn_columns(columns, members, folded, kept)
    set_rows(result.boxes, _first(result.of, first))
    result = sort_by_row(result)
    for box in result.boxes.boxes:
        box.ops = unique(box.ops)
    edges = plan.prediction_edges if predicts else plan.step_edges
    node_classes = NodeClasses([graph])
    return PlacedGraph(
        build,
        graph,
        edges,
        "a prediction batch" if predicts else TRAINING,
        columns,
        boxes,
        result.boxes,
        result.of,
        groups,
        devices,
        _flops(graph, edges, columns, boxes, result.of, node_classes),
        Layers(graph),
        node_classes,
    )


def drawn_graph(graphs: Sequence[Graph]) -> Graph:
    """Return the graph of a training step. If it computes nothing, because the build only
    predicts, return the graph of a prediction."""
    step = graphs[0]
    if len(graphs) > 1 and all(op in step.weights for op in step.ops):
        return graphs[-1]
    return step


def _first(of: Sequence[int], first: Sequence[int]) -> list[int]:
    result: dict[int, int] = {}
    for number, position in zip(of, first, strict=True):
        result[number] = min(position, result.get(number, position))
    return [result[number] for number in range(len(result))]


def _add_directive(graph: Graph, columns: Columns, boxes: Boxes, op: Op) -> None:
    """Add a directive to the first box that follows it: an `optimizer` to the first update
    of its parameters on each of its nodes."""
    groups = {columns.group_of[node] for node in graph.nodes(op)}
    for group in groups:
        own = [b for b in boxes.boxes if columns.columns[b.column].group == group]
        for box in own:
            if any(
                each.structure.update and each.attrs["group"] == op.attrs.get("group")
                for each in box.ops
            ):
                box.ops.insert(0, op)
                break
        else:
            if own:
                own[-1].ops.append(op)


def _new_columns(
    kept: Sequence[int], folded: Sequence[int | None], count: int
) -> tuple[list[int], list[bool], list[list[int]]]:
    """Return the drawn column of each column, which columns share one, and the columns of
    each drawn column."""
    target, shared = [0] * count, [False] * count
    members: list[list[int]] = []
    of_kind: dict[int, int] = {}
    for number, kind in zip(kept, folded, strict=True):
        if kind is None:
            target[number] = len(members)
            members.append([number])
            continue
        shared[number] = True
        if kind not in of_kind:
            of_kind[kind] = len(members)
            members.append([])
        target[number] = of_kind[kind]
        members[of_kind[kind]].append(number)
    return target, shared, members


def _drawn_columns(
    columns: Columns,
    members: Sequence[Sequence[int]],
    folded: Sequence[int | None],
    kept: Sequence[int],
) -> tuple[list[tuple[str, ...]], list[tuple[int, Sequence[DeviceColumn]]]]:
    """Return the drawn groups and columns."""
    sharing = {n for n, kind in zip(kept, folded, strict=True) if kind is not None}
    groups: dict[object, int] = {}
    nodes: list[tuple[str, ...]] = []
    devices: list[tuple[int, Sequence[DeviceColumn]]] = []
    for numbers in members:
        own = [columns.columns[n] for n in numbers]
        is_shared = numbers[0] in sharing
        key: object = ("shared", numbers[0]) if is_shared else own[0].group
        if key not in groups:
            groups[key] = len(nodes)
            of = dict.fromkeys(column.group for column in own)
            nodes.append(tuple(str(n) for g in of for n in columns.groups[g]))
        devices.append((groups[key], own))
    return nodes, devices


def draw(placed: PlacedGraph, step_time: StepTime | None = None) -> facts.Placement:
    """Return the facts of the picture."""
    plan, drawn = placed.build.plan, placed.drawn
    flops = [sum(of_ops.values()) for of_ops in placed.flops]
    stored = _stored(placed)
    arrows = list(_arrows(placed, step_time))
    sent: dict[int, int] = defaultdict(int)
    estimated: set[int] = set()
    for arrow in arrows:
        if not arrow.between_devices:
            sent[arrow.source] += arrow.nbytes
        if arrow.estimated:
            estimated.add(arrow.source)
    reasons = {
        choice.what.partition(" (")[0]: choice.why
        for choice in reversed(plan.choices)
        if not choice.why.startswith("inserted")
    }
    firsts = [
        list(dict.fromkeys(placed.columns.groups[column.group][0] for column in own))
        for _, own in placed.devices
    ]
    calls = calls_of_boxes(drawn.boxes, placed.nodes, firsts, plan, step_time)
    boxes = []
    for number, box in enumerate(placed.top_boxes):
        nodes = len(placed.nodes[box.column])
        lines, more = lines_of(placed.graph, box, placed.layers)
        functions, seconds = calls[number]
        boxes.append(
            facts.Box(
                id=number,
                column=box.column,
                row=box.row,
                purpose=box.purpose,
                title=title_of(placed.graph, box),
                lines=lines,
                more=more,
                ops=len(box.ops),
                flops=round(flops[number] / nodes),
                total_flops=flops[number],
                nbytes=sent[number],
                estimated=number in estimated,
                stored=round(stored[number] / nodes),
                total_stored=stored[number],
                seconds=seconds,
                functions=functions,
                why=reason_of(placed.graph, box, reasons),
            )
        )
    columns, left_out = _columns(placed)
    return facts.Placement(
        placed.phase,
        tuple(facts.Group(nodes, format_nodes(nodes)) for nodes in placed.groups),
        columns,
        tuple(boxes),
        tuple(a for a in arrows if max(a.source, a.target) < MAX_BOXES),
        left_out,
        mode_of(placed.graph, plan) if placed.phase == TRAINING else "",
    )


def _columns(placed: PlacedGraph) -> tuple[tuple[facts.Column, ...], str]:
    """Return the columns, and text about devices and boxes that are not drawn."""
    columns, texts = [], []
    rest = placed.drawn.boxes[MAX_BOXES:]
    left_out = Counter(box.column for box in rest)
    for number, (group, own) in enumerate(placed.devices):
        title, count = own[0].title, own[0].count
        if len(own) > 1:
            count = sum(c.count * len(placed.columns.groups[c.group]) for c in own)
            title = plural(count, "device")
            nodes = format_nodes(placed.groups[group])
            texts.append(f"{title} of {nodes} share a column")
        columns.append(facts.Column(group, title, count, left_out[number]))
    if rest:
        boxes = plural(len(rest), "box is", "boxes are")
        texts.append(f"{boxes} not drawn, from row {rest[0].row} on")
    return tuple(columns), "; ".join(texts)


def _flops(
    graph: Graph,
    edges: Sequence[Edge],
    columns: Columns,
    boxes: Boxes,
    of: Sequence[int],
    node_classes: NodeClasses,
) -> list[dict[Op, int]]:
    """Return the FLOPs of the ops of each drawn box, on all nodes."""
    nodes: dict[str, int] = defaultdict(int)
    for first in group_by_cost(graph, node_classes).values():
        nodes[first] += 1
    box_of = _boxes_of_ops(graph, columns, boxes, of)
    total: list[dict[Op, int]] = [{} for _ in range(max(of, default=-1) + 1)]
    at = {
        node: (box_of[columns.group_of[NodeId(node)]], n) for node, n in nodes.items()
    }
    for op, node, cost in op_costs(graph, edges, nodes):
        in_boxes, count = at[node]
        own = total[in_boxes[op]]
        flops = cost.model + cost.replicated + cost.exchange
        own[op] = own.get(op, 0) + flops * count
    return total


def _boxes_of_ops(
    graph: Graph, columns: Columns, boxes: Boxes, of: Sequence[int]
) -> list[dict[Op, int]]:
    """Return the drawn box of each op, for each group of nodes."""
    box_of: list[dict[Op, int]] = [{} for _ in columns.groups]
    for number, box in enumerate(boxes.boxes):
        group = columns.columns[box.column].group
        box_of[group].update(dict.fromkeys(box.ops, of[number]))
    return box_of


def _stored(placed: PlacedGraph) -> dict[int, int]:
    """Return the bytes of parameters that each drawn box stores on all its nodes."""
    plan = placed.build.plan
    items = item_bytes(plan)
    holders: list[dict[str, int]] = [{} for _ in placed.columns.groups]
    for number, box in enumerate(placed.boxes.boxes):
        group = placed.columns.columns[box.column].group
        for op in box.ops:
            if op.kind in ("parameter", "local_parameter"):
                holders[group][op.name] = placed.of[number]
    stored: dict[int, int] = defaultdict(int)
    for node in plan.nodes:
        own = holders[placed.columns.group_of[NodeId(node.name)]]
        for table in node.tables:
            for block in table.blocks:
                if block.name in own:
                    stored[own[block.name]] += block_bytes(block, items)
    return stored


def _arrows(placed: PlacedGraph, step_time: StepTime | None) -> Iterator[facts.Arrow]:
    """Yield the messages and the copies between devices, one for each two boxes."""
    messages: dict[tuple[int, int], list[tuple[Edge, int]]] = {}
    seconds: dict[tuple[int, int], float] = {}
    measured = _measured_bytes(placed, step_time)
    slowest = _slowest(placed, step_time)
    for edge in placed.edges:
        senders, receivers = (
            placed.drawn.senders[edge.id],
            placed.drawn.receivers[edge.id],
        )
        parts = measured.get(edge.id) or divide_edge(
            placed.graph,
            placed.build.plan,
            edge,
            placed.columns.group_of,
            placed.node_classes,
        )
        for (source, target), nbytes in parts.items():
            pair = senders[source], receivers[target]
            messages.setdefault(pair, []).append((edge, nbytes))
            if time := slowest.get((edge.id, (source, target))):
                seconds[pair] = max(seconds.get(pair, 0.0), time)
    for (first, second), sent in messages.items():
        names = _names(value.operand for edge, _ in sent for value in edge.values)
        yield facts.Arrow(
            first,
            second,
            sum(nbytes for _, nbytes in sent),
            tuple(dict.fromkeys(edge.id for edge, _ in sent)),
            tuple(names[:_MAX_VALUES]),
            max(0, len(names) - _MAX_VALUES),
            estimated=any(e.is_by_key and e.id not in measured for e, _ in sent),
            measured=any(edge.id in measured for edge, _ in sent),
            seconds=seconds.get((first, second)),
        )
    yield from _copies(placed)


def _measured_bytes(
    placed: PlacedGraph, step_time: StepTime | None
) -> dict[int, dict[Pair, int]]:
    """Return the measured bytes of edges with keys and rows, by edge and groups of nodes.

    The plan has only upper bounds of these. The bytes of other edges are exact.
    """
    if step_time is None:
        return {}
    group_of = placed.columns.group_of
    found: dict[int, dict[Pair, int]] = {}
    by_key = {edge.id for edge in placed.edges if edge.is_by_key}
    for sent in step_time.sent:
        if sent.edge in by_key:
            pair = group_of[NodeId(sent.source)], group_of[NodeId(sent.target)]
            of_edge = found.setdefault(sent.edge, {})
            # Threads of a process share memory.
            is_sent = NodeId(sent.source).process != NodeId(sent.target).process
            of_edge[pair] = of_edge.get(pair, 0) + is_sent * sent.nbytes
    return found


def _slowest(
    placed: PlacedGraph, step_time: StepTime | None
) -> dict[tuple[int, Pair], float]:
    """Return the time of the slowest message on an edge between groups of nodes."""
    group_of = placed.columns.group_of
    found: dict[tuple[int, Pair], float] = {}
    for sent in step_time.sent if step_time else ():
        pair = group_of[NodeId(sent.source)], group_of[NodeId(sent.target)]
        key = sent.edge, pair
        found[key] = max(found.get(key, 0.0), sent.seconds)
    return found


def _copies(placed: PlacedGraph) -> Iterator[facts.Arrow]:
    """Yield the copies between devices of a node."""
    graph = placed.graph
    copies: dict[tuple[int, int], dict[str, int]] = {}
    group_of = [placed.columns.columns[box.column].group for box in placed.boxes.boxes]
    for link in placed.boxes.links:
        pair = placed.of[link.source], placed.of[link.target]
        if pair[0] != pair[1]:
            own = copies.setdefault(pair, {})
            nodes = placed.columns.groups[group_of[link.source]]
            own[link.value] = own.get(link.value, 0) + _local_bytes(
                graph, link.value, nodes
            )
    for (first, second), values in copies.items():
        names = _names(values)
        yield facts.Arrow(
            first,
            second,
            sum(values.values()),
            values=tuple(names[:_MAX_VALUES]),
            more=max(0, len(names) - _MAX_VALUES),
            between_devices=True,
        )


def _names(values: Iterable[str]) -> list[str]:
    """Return the names of values, without suffixes for copies of devices."""
    return list(
        dict.fromkeys(
            name.removesuffix(".d2h").removesuffix(".h2d").removesuffix(".d2d")
            for name in values
        )
    )


def _local_bytes(graph: Graph, name: str, nodes: Iterable[NodeId]) -> int:
    """Return the bytes of a value on some nodes in a step."""
    value, op = graph.values[name], graph.producers[name]
    at = graph.nodes(op)
    times = graph.microbatches if value.microbatch_layout in ("P", "R") else 1
    total = 0
    for index, node in enumerate(at):
        if node in nodes:
            rows = graph.batch
            if value.layout == "S":
                rows = row_shard(at, index, graph.cluster.workers).num_rows(rows)
            total += times * bytes_of(value.type, rows)
    return total
