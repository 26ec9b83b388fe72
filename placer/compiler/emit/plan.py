"""Makes the plan of a compiled model: edges, reads, costs and choices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import structs

import placer
from placer.compiler.emit.choices import explain_choices, parts_of_functions
from placer.compiler.emit.names import has_long_part, shorten_parts
from placer.compiler.emit.optax_tables import transformations_of
from placer.compiler.emit.programs import Programs
from placer.compiler.emit.sparse import counted_with, plan_sparse_tables
from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.if_training import is_output, resolve_if_training
from placer.compiler.graph.keyed import (
    ahead_of,
    count_keys,
    keys_of,
    row_bytes,
    tables_of,
)
from placer.compiler.graph.model import Model
from placer.compiler.graph.structural_ops import OUTPUT
from placer.compiler.memory.node_memory import MemoryEstimate
from placer.compiler.schedule.costs import step_costs
from placer.compiler.schedule.schedule import Schedule
from placer.compiler.schedule.streamed_updates import find_streamed_updates
from placer.compiler.schedule.units import LoweredGraph
from placer.place import Place
from placer.place.layouts import Layout
from placer.place.layouts.moved_pieces import Conversion
from placer.place.layouts.partition import RowShard, row_shard, row_shards
from placer.place.layouts.ranges import count_sent
from placer.place.node_kinds import CPU, NodeId
from placer.place.types import ITEM_BYTES, TensorType
from placer.plan.plan import (
    MEMORY,
    VERSION,
    Edge,
    EdgeValue,
    Metric,
    NodePhase,
    NodePlan,
    Output,
    Parameter,
    Plan,
    Read,
    Table,
    edges_ahead,
)
from placer.plan.settings.data.columns import Column
from placer.plan.settings.data.sources import POSITION
from placer.plan.settings.training.initializers import in_build


def make_plan(
    model: Model,
    graphs: Sequence[LoweredGraph],
    tables: Mapping[str, tuple[Table, ...]],
    schedule: Schedule,
    programs: Programs,
    files: Mapping[str, str],
) -> Plan:
    """Return the plan of a build, without its digest.

    Args:
        model: the compiled model.
        graphs: the lowered graphs; the first is the step.
        tables: the tables of each node.
        schedule: the schedule of the step.
        programs: the node programs.
        files: the SHA-256 of each file of the build, by path.
    """
    step = graphs[0].graph
    edges = {lowered.hook: _edges(lowered) for lowered in graphs}
    edges["step"] = _mark_sent_back(step, edges["step"], tables)
    costs = step_costs(step, edges["step"], graphs[0].node_classes)
    ahead = {node: _bytes_ahead(edges["step"], node) for node in tables}
    memory = MemoryEstimate(graphs[0], schedule, ahead)
    phases = {lowered.hook: _node_phases(lowered) for lowered in graphs}
    absent: dict[str, NodePhase] = {}
    computes: dict[tuple[str, ...], dict[str, tuple[str, ...]]] = {}
    nodes = []
    for node in step.cluster.all_nodes():
        if (key := _class_of(graphs, node)) not in computes:
            computes[key] = _computing_devices(graphs, node, tables[node])
        cost = costs[node]
        planned = NodePlan(
            name=node,
            program=programs.of_node[node],
            functions=programs.segments[programs.of_node[node]],
            devices=dict(step.cluster.kind(node.kind).devices),
            turns=schedule.task_names(node),
            computes=computes[key],
            step=phases["step"][node],
            evaluation=phases.get("evaluate", absent).get(node),
            prediction=phases.get("predict", absent).get(node),
            tables=tables[node],
            table_bytes=memory.table_bytes(tables[node]) + memory.sum_bytes(node),
            activation_bytes=memory.activation_bytes(node),
            device_bytes=memory.device_bytes(node, tables[node]),
            memory=_host_memory(model, node),
            device_memory=_device_memory(model, node),
            flops=cost.model,
            replicated_flops=cost.replicated,
            exchange_flops=cost.exchange,
        )
        nodes.append(planned)
    return Plan(
        version=VERSION,
        placer=placer.__version__,
        name=step.name,
        settings=model.settings,
        columns=_columns(model, graphs),
        train=model.train,
        evaluation=model.eval,
        prediction=model.prediction,
        outputs=_outputs(model),
        nodes=tuple(nodes),
        step_edges=edges["step"],
        evaluation_edges=edges.get("evaluate", ()),
        prediction_edges=edges.get("predict", ()),
        parameters=_parameters(step, nodes),
        sparse_tables=tuple(plan_sparse_tables(each.graph for each in graphs)),
        choices=explain_choices(model, step),
        parts=parts_of_functions(step),
        untrained=dict(model.untrained),
        transformations=transformations_of(step),
        modules=model.modules,
        files=dict(sorted(files.items())),
    )


def _host_memory(model: Model, node: NodeId) -> int | None:
    """Return the host memory of a node in bytes, from the spec."""
    memory = model.memory.get((node.kind, CPU))
    return None if memory is None else memory.nbytes


def _device_memory(model: Model, node: NodeId) -> dict[str, int]:
    """Return the memory of each accelerator of a node in bytes, from the spec."""
    return {
        device: memory.nbytes
        for (kind, device), memory in model.memory.items()
        if kind == node.kind and device != CPU
    }


def _parameters(step: Graph, nodes: Sequence[NodePlan]) -> tuple[Parameter, ...]:
    holders: dict[str, dict[int, tuple[str, str, int]]] = defaultdict(dict)
    trained: set[str] = set()
    for node in nodes:
        for table in node.tables:
            if table.local:
                continue
            if table.rule is not None:
                trained.update(block.parameter for block in table.blocks)
            for i, block in enumerate(table.blocks):
                if block.start == block.stop:
                    continue  # this node has an empty range of the parameter
                holders[block.parameter].setdefault(
                    block.start, (node.name, table.name, i)
                )
    parameters: dict[str, Parameter] = {}
    for op in step.parameters:
        name, kind = op.attrs.get("whole", op.name), step.tensor_type(op.name)
        parameters[name] = Parameter(
            name=name,
            dtype=kind.dtype,
            shape=op.attrs.get("shape", kind.sizes(1)),
            init=in_build(op.attrs["init"]),
            trainable=name in trained,
            state=op.attrs.get("state", False),
            holders=tuple(at for _, at in sorted(holders[name].items())),
            short_name=shorten_parts(name) if has_long_part(name) else None,
        )
    return tuple(parameters.values())


def _class_of(graphs: Sequence[LoweredGraph], node: str) -> tuple[str, ...]:
    """Return a key that is equal for nodes that run the same ops in every graph."""
    return tuple([lowered.node_classes.representative(node) for lowered in graphs])


def _computing_devices(
    graphs: Iterable[LoweredGraph], node: str, tables: Sequence[Table]
) -> dict[str, tuple[str, ...]]:
    """Return the sets of devices that a node uses to compute ops or to update tables."""
    sets = [
        lowered.graph.devices(op)
        for lowered in graphs
        for op in lowered.graph.ops_on(node)
        if op.is_computed
    ]
    sets += [table.devices for table in tables if table.devices != MEMORY]
    return {name: _list_devices(name) for name in dict.fromkeys(sets)}


def _list_devices(name: str) -> tuple[str, ...]:
    """Return the devices of a set such as `gpu:0-1`: `gpu:0` and `gpu:1`."""
    place = Place.parse(f"/{name}")
    assert isinstance(place.device_ids, tuple), name
    return tuple(f"{place.device}:{number}" for number in place.device_ids)


def _node_phases(lowered: LoweredGraph) -> dict[str, NodePhase]:
    """Return the inputs, metrics and outputs of each node in a graph."""
    graph, workers = lowered.graph, lowered.graph.cluster.workers
    reads: dict[str, list[Read]] = {}
    metrics: dict[str, dict[str, Metric]] = {}
    for op in graph.of_kind("read"):
        nodes = graph.nodes(op)
        for i, node in enumerate(nodes):
            split = op.result.layout == "S"
            share = row_shard(nodes, i, workers) if split else RowShard((0,), 1)
            read = Read(op.name, op.attrs["input"], share)
            reads.setdefault(node, []).append(read)
    for op in graph.of_kind("record"):
        layout = graph.values[op.operands[0]].layout or "R"
        metric = Metric(layout, op.attrs.get("final", "value"))
        for node in graph.nodes(op):
            metrics.setdefault(node, {})[op.attrs["metric"]] = metric
    outputs: dict[str, dict[str, RowShard]] = {}
    for op in graph.of_kind(OUTPUT):
        nodes = graph.nodes(op)
        shards = row_shards(nodes, workers)
        if graph.layout(op.operands[0]) == "R":  # every node has all rows
            shards = (RowShard((0,), 1),)
        for node, shard in zip(nodes, shards, strict=False):
            outputs.setdefault(node, {})[op.attrs["output"]] = shard
    return {
        node: NodePhase(
            tuple(reads.get(node, ())), metrics.get(node, {}), outputs.get(node, {})
        )
        for node in graph.cluster.all_nodes()
    }


def _outputs(model: Model) -> tuple[Output, ...]:
    """Return the outputs of a model. Its graph has not run through passes."""
    graph = model.graph
    inputs: dict[str, frozenset[str]] = {}  # the inputs that each value depends on
    outputs = []
    for op in resolve_if_training(graph, 1, is_output):
        used = frozenset[str]().union(*(inputs[name] for name in op.operands))
        if op.kind == "read" and op.attrs["input"] != POSITION:
            used |= {op.attrs["input"]}
        inputs.update((value.name, used) for value in op.results)
        if is_output(op):
            kind = graph.tensor_type(op.operands[0])
            outputs.append(
                Output(
                    name=op.attrs["output"],
                    dtype=kind.dtype,
                    shape=kind.sizes(1)[1:],
                    inputs=tuple(sorted(used)),
                    classes=model.classes.get(op.attrs["output"]),
                )
            )
    return tuple(outputs)


def _edges(lowered: LoweredGraph) -> tuple[Edge, ...]:
    graph = lowered.graph
    ahead = {
        edge
        for push in graph.sends.values()
        if push.exchange and push.exchange.sends_keys_ahead
        for edge in ahead_of(graph, push)
    }
    pushes = any(op.is_push for op in graph.sends.values())
    edges = []
    for edge, listen in graph.receives.items():
        send = graph.sends[edge]
        values = tuple(
            _edge_value(graph, send, operand, result.name, is_ahead=edge in ahead)
            for operand, result in zip(send.operands, listen.results, strict=True)
        )
        sources, targets = graph.nodes(send), graph.nodes(listen)
        times = graph.microbatches if graph.is_repeated(listen) else 1
        planned = Edge(
            id=edge,
            sources=sources,
            targets=targets,
            values=values,
            nbytes=0,
            once=send.is_once,
            ring=send.attrs.get("ring", False),
            stable=all(
                graph.producers[name].kind == "parameter"
                and graph.values[name].flat is not None
                for name in send.operands
            ),
            exchange=send.attrs.get("exchange"),
            group=send.attrs.get("group"),
            first=send.attrs.get("first"),
            every=send.attrs.get("every", 1),
            bucket=send.attrs.get("bucket"),
            companions=pushes and edge in graph.paired_edges,
        )
        nbytes = _bytes_of(lowered, planned, times) // planned.every
        edges.append(structs.replace(planned, nbytes=nbytes))
    return tuple(_mark_following(sorted(edges, key=lambda edge: edge.id)))


def _mark_following(edges: Iterable[Edge]) -> Iterator[Edge]:
    """Yield the edges; a bucket `follows` if an earlier bucket takes the same route."""
    firsts: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = {}
    edges = tuple(edges)
    for edge in edges:
        if edge.bucket is not None:
            way = edge.sources, edge.targets
            firsts[way] = min(edge.bucket, firsts.get(way, edge.bucket))
    for edge in edges:
        first = firsts.get((edge.sources, edge.targets))
        follows = first is not None and edge.bucket is not None and edge.bucket > first
        yield structs.replace(edge, follows=follows)


def _mark_sent_back(
    step: Graph, edges: Sequence[Edge], tables: Mapping[str, tuple[Table, ...]]
) -> tuple[Edge, ...]:
    """Return the edges; `sent_back` marks parameters that a server sends while updating."""
    # Such a server updates the table in place, with gradients as they arrive.
    streamed: dict[str, list[set[str]]] = {}
    for node, of_node in tables.items():
        if any(table.in_place for table in of_node):
            names = find_streamed_updates(step, node, of_node)
            streamed[node] = [
                {block.name for block in table.blocks}
                for table in of_node
                if table.name in names and table.in_place
            ]

    def is_sent_back(edge: Edge) -> bool:
        (source, *others), sent = edge.sources, {v.operand for v in edge.values}
        return (
            not others
            and source not in edge.targets
            and edge.exchange is None
            and all(v.layouts == ("R", "R") and v.start is None for v in edge.values)
            and any(sent <= blocks for blocks in streamed.get(source, ()))
        )

    return tuple(
        structs.replace(edge, sent_back=True) if is_sent_back(edge) else edge
        for edge in edges
    )


def _bytes_ahead(edges: Sequence[Edge], node: str) -> int:
    """Return the bytes of the next step's parameters that a node receives one step ahead."""
    return sum(
        value.size * ITEM_BYTES[value.dtype]
        for edge in edges_ahead(edges, node)
        for value in edge.values
    )


def _bytes_of(lowered: LoweredGraph, edge: Edge, times: int) -> int:
    """Return the bytes of all messages of an edge in one step."""
    if edge.is_by_key:
        return _keyed_bytes(lowered, edge, times)
    if edge.is_flat:
        return _flat_bytes(lowered, edge, times)
    if edge.declared is not None and edge.declared.moves == "differences":
        # The result is the difference of one worker, and each worker sends its own.
        one_each = (structs.replace(edge, sources=(each,)) for each in edge.sources)
        return sum(_row_bytes(lowered, each, times) for each in one_each)
    return _row_bytes(lowered, edge, times)


def _flat_bytes(lowered: LoweredGraph, edge: Edge, times: int) -> int:
    """Return the bytes of an edge whose values are divided into ranges. It has one message per
    step, also with microbatches."""
    del lowered
    assert times == 1, edge.id
    nbytes = 0
    for value in edge.values:
        sides = edge.sources, edge.targets
        if value.layouts[1] == "F":
            sides = edge.targets, edge.sources
        sent = count_sent(edge.ranges(value), *sides)
        nbytes += sent * ITEM_BYTES[value.dtype]
    return nbytes


def _keyed_bytes(lowered: LoweredGraph, edge: Edge, times: int) -> int:
    """Return the bytes of an edge of rows by key, if all keys of a batch are different."""
    graph = lowered.graph
    return (
        sum(
            count_keys(graph, value.operand, graph.batch // times)
            * row_bytes(graph.tensor_type(value.operand))
            for value in edge.values
        )
        * times
    )


def _row_bytes(lowered: LoweredGraph, edge: Edge, times: int) -> int:
    """Return the bytes of an edge of whole values and rows, sent `times` times per step."""
    graph = lowered.graph
    crossing: dict[tuple[Layout, Layout], tuple[int, int]] = {}
    nbytes = 0
    for value in edge.values:
        if value.layouts not in crossing:
            crossing[value.layouts] = _count_crossing(
                lowered, value.layouts, edge.sources, edge.targets, times
            )
        wholes, rows = crossing[value.layouts]
        batch, kind = graph.batch // times, TensorType(value.dtype, value.shape)
        whole = kind.nbytes(batch)
        nbytes += wholes * whole + rows * (whole // batch if kind.has_rows else whole)
    return times * nbytes


def _edge_value(
    graph: Graph, send: Op, operand: str, result: str, *, is_ahead: bool
) -> EdgeValue:
    """Return a value of an edge, given its name at the sender and at the receiver."""
    # The range of a `cut` is sent without a copy; a block of an `assemble` is received
    # into the joined value.
    kind = graph.tensor_type(operand)
    cut = graph.producers[operand]
    is_cut = cut.kind == "cut"
    joined = [op for op in graph.uses.get(result, ()) if op.kind == "assemble"]
    at, numel, whole = 0, 0, None
    if joined:
        parts = joined[0].operands
        sizes = [graph.tensor_type(name).numel() for name in parts]
        at = sum(sizes[: parts.index(result)])
        whole, numel = joined[0].name, sum(sizes)
    tables = tables_of(graph, operand) if kind.is_keyed else ()
    counted = counted_with(graph, operand)
    return EdgeValue(
        operand=cut.operands[0] if is_cut else operand,
        result=result,
        dtype=send.attrs.get("dtype", kind.dtype),
        shape=kind.shape,
        layouts=(graph.layout(operand), graph.layout(result)),
        flat=graph.values[operand].flat or graph.values[result].flat,
        start=cut.attrs["start"] if is_cut else None,
        stop=cut.attrs["stop"] if is_cut else None,
        whole=whole,
        at=at,
        numel=numel,
        table=tables[0] if tables else None,
        counted=tuple(each.what for each in counted),
        inputs=keys_of(graph, operand).operands if is_ahead else (),
        others=tables[1:],
        counted_for=tuple(each.tables for each in counted) if tables[1:] else (),
    )


def _count_crossing(
    lowered: LoweredGraph,
    layouts: tuple[Layout, Layout],
    sources: Sequence[str],
    targets: Sequence[str],
    times: int,
) -> tuple[int, int]:
    """Return how many whole values, and how many rows, one message moves between processes."""
    # All targets of a class receive the same number.
    batch, workers = lowered.graph.batch // times, lowered.graph.cluster.workers
    conversion = Conversion(layouts, sources, targets, batch, workers)
    classes = lowered.node_classes.classes
    wholes = rows = 0
    for target in filter(classes.__contains__, targets):
        for piece in conversion.pieces_for(target):
            if NodeId(piece.source).process != NodeId(target).process:
                wholes += len(classes[target]) * piece.is_whole
                rows += len(classes[target]) * (piece.high - piece.low)
    return wholes, rows


def _columns(model: Model, graphs: Sequence[LoweredGraph]) -> tuple[Column, ...]:
    """Return the inputs that the graphs read."""
    # A build that only predicts lists all inputs, because the column of an input depends
    # on the other inputs.
    only_predicts = not model.settings.train.minimize
    used = {op.attrs["input"] for each in graphs for op in each.graph.of_kind("read")}
    return tuple(
        Column(name=name, dtype=kind.dtype, shape=kind.sizes(1)[1:])
        for name, kind in model.inputs.items()
        if only_predicts or name in used
    )
